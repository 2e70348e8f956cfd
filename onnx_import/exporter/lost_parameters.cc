#include "onnx_import/exporter/lost_parameters.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/name_pattern.h"

namespace pipeshard {
namespace {

using Instead = LostParameter::Instead;

std::string remedyFor(const ModuleParameters& parameters, const std::vector<LostParameter>& refused) {
  const auto areAll = [&](auto is) { return std::all_of(refused.begin(), refused.end(), is); };
  if (parameters.keras && parameters.torchscript) {
    return "A model of Keras can be trained as it is in the file, in folded form: --train . ; what comes "
           "home has the names and shapes of the file then";
  }
  const bool dropped = areAll([](const LostParameter& lost) { return lost.instead == Instead::kUnmarked; });
  std::string remedy = dropped ? "Plan the exporter's own file"
                               : "Export the module without it: " + exportLine(parameters.torchscript);
  if (parameters.torchscript)
    return remedy + ". Or, to train or to freeze what the file has: --train NAME_REGEX, --freeze NAME_REGEX";
  remedy += ". Or, if they are not to be trained: --freeze NAME_REGEX";
  if (areAll([](const LostParameter& lost) { return lost.instead == Instead::kNormalized; })) {
    remedy +=
        ". Or, to train the network that the file has, whose convolutions have the normalisations in them: "
        "--train 'weight|bias'";
  } else if (areAll([](const LostParameter& lost) { return lost.instead != Instead::kNothing; })) {
    remedy += ". Or, to train what the file has under these names: --train NAME_REGEX";
  }
  return remedy;
}

}  // namespace

std::string exportLine(bool torchscript) {
  return torchscript ? "torch.onnx.export(module, args, \"model.onnx\", dynamo=False, "
                       "training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False, ...)"
                     : "torch.onnx.export(module, args, \"model.onnx\", optimize=False, ...)";
}

void refuseLostParameters(const ModuleParameters& parameters, const std::vector<std::string>& frozen,
                          const std::vector<std::string>& trained) {
  constexpr size_t kMost = 8;
  const auto patternsOf = [](const char* option, const std::vector<std::string>& texts) {
    std::vector<NamePattern> patterns;
    for (const std::string& text : texts) patterns.emplace_back(fmt::format("{} '{}'", option, text), text);
    return patterns;
  };
  const auto names = [](const std::vector<NamePattern>& patterns, const LostParameter& lost) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const NamePattern& pattern) { return pattern.isFoundIn(lost.name); });
  };
  const std::vector<NamePattern> freeze = patternsOf("--freeze", frozen),
                                 train = patternsOf("--train", trained);
  std::vector<LostParameter> refused;
  std::vector<std::string> lines;
  for (const LostParameter& lost : parameters.lost) {
    const bool can_train = lost.instead != Instead::kNothing || parameters.torchscript;
    if (names(train, lost) ? can_train : names(freeze, lost)) continue;
    lines.push_back(fmt::format("{} ({})", lost.name, lost.reason));
    refused.push_back(lost);
  }
  if (lines.empty()) return;
  const bool dropped = std::all_of(refused.begin(), refused.end(), [](const LostParameter& lost) {
    return lost.instead == Instead::kUnmarked;
  });
  fail(ErrorCode::kBadModel, "{} so that they cannot be trained: {}. {}",
       dropped ? "the file has lost what its exporter said of the module's parameters,"
               : "the exporter's optimizer has changed parameters of the module",
       listed(lines, kMost), remedyFor(parameters, refused));
}

}  // namespace pipeshard
