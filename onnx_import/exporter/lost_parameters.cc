#include "onnx_import/exporter/lost_parameters.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/name_pattern.h"

namespace pipeshard {
namespace {

using Instead = LostParameter::Instead;

// An expression for --train and --freeze that means all of them: "'^(onnx::Conv_|onnx::Add_)'", of the
// exporter's names without their numbers.
std::string patternOf(const std::vector<LostParameter>& parameters) {
  constexpr size_t kMost = 4;
  std::vector<std::string> beginnings;
  for (const LostParameter& parameter : parameters) {
    std::string name = parameter.name;
    if (name.starts_with("onnx::")) name.resize(name.find_last_not_of("0123456789") + 1);
    if (std::ranges::find(beginnings, name) == beginnings.end()) beginnings.push_back(std::move(name));
  }
  if (beginnings.size() > kMost) return "NAME_REGEX";
  return fmt::format("'^({})'", fmt::join(beginnings, "|"));
}

std::string remedyFor(const ModuleParameters& parameters, const std::vector<LostParameter>& refused) {
  const auto areAll = [&](auto is) { return std::all_of(refused.begin(), refused.end(), is); };
  if (parameters.keras && parameters.torchscript) {
    return "A model of Keras can be trained as it is in the file, in folded form: --train . ; what comes "
           "home has the names and shapes of the file then";
  }
  if (parameters.torchscript) {
    const std::string pattern = patternOf(refused);
    return fmt::format(
        "With this file alone: --train {0} trains what it has in their place, in folded form (what "
        "comes home has the file's names and shapes then), --freeze {0} leaves it as it is. With the module: "
        "export it without that: {1}",
        pattern, exportLine(true));
  }
  const bool dropped = areAll([](const LostParameter& lost) { return lost.instead == Instead::kUnmarked; });
  std::string remedy =
      dropped ? "Plan the exporter's own file" : "Export the module without it: " + exportLine();
  remedy += ". Or, if they are not to be trained: --freeze NAME_REGEX";
  if (areAll([](const LostParameter& lost) { return lost.instead == Instead::kNormalized; })) {
    remedy +=
        ". Or, to train the network that the file has, whose convolutions have the normalisations in them: "
        "--train 'weight|bias'";
  } else if (areAll([](const LostParameter& lost) { return lost.instead == Instead::kItself; })) {
    remedy += ". Or, if what is left out has only a constant of the module's code in it: --train NAME_REGEX";
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
