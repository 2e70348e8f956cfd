#include "ir/plan/given_options.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "ir/base/amounts.h"
#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr std::array<std::string_view, 3> kOverlapNames = {"off", "between-nodes", "on"};

constexpr GivenOption kOptions[] = {
    {.key = "optimizer",
     .flag = "--optimizer",
     .field = &GivenOptions::optimizer,
     .place = OptionPlace::kTraining,
     .part = "training",
     .default_text = "sgd:lr=0.01",
     .values = nullptr,
     .help = "sgd:lr=0.1,momentum=0.9 | adam:lr=1e-3 | adamw:lr=1e-3,weight_decay=0.01"},
    {.key = "precision",
     .flag = "--precision",
     .field = &GivenOptions::precision,
     .place = OptionPlace::kTraining,
     .part = "training",
     .default_text = "float32",
     .values = nullptr,
     .help = "float32, or float64 to validate with tight bounds"},
    {.key = "train",
     .flag = "--train",
     .field = &GivenOptions::train,
     .place = OptionPlace::kTrain,
     .part = "training",
     .default_text = nullptr,
     .values = "REGEX",
     .help = "Train these weights, whatever the model says and also if --freeze has them;\n--freeze . "
             "--train ^head trains the head alone"},
    {.key = "freeze",
     .flag = "--freeze",
     .field = &GivenOptions::freeze,
     .place = OptionPlace::kFreeze,
     .part = "training",
     .default_text = nullptr,
     .values = "REGEX",
     .help = "Do not train weights in whose names this regular expression is found; repeat for several"},
    {.key = "bucket_bytes",
     .flag = "--bucket",
     .field = &GivenOptions::bucket_bytes,
     .place = OptionPlace::kExecution,
     .part = "training",
     .default_text = nullptr,
     .values = "BYTES",
     .help =
         "Gradients are synchronised in buckets of at least so many bytes while the last backward pass goes "
         "on; off: behind it\n"
         "(default: 4MiB)"},
    {.key = "overlap_receives",
     .flag = "--overlap-receives",
     .field = &GivenOptions::overlap_receives,
     .place = OptionPlace::kExecution,
     .part = "schedule",
     .default_text = "between-nodes",
     .values = "WHICH",
     .help =
         "Messages between stages come while the receiving worker computes, into one buffer more for each "
         "sender:\non|between-nodes|off"},
};

// By type of the field: its texts.
using Texts = std::vector<std::string>;

Texts textsOfValue(const OptimizerSpec& optimizer) { return {optimizerToString(optimizer)}; }
Texts textsOfValue(DataType type) { return {std::string(dataTypeName(type))}; }
Texts textsOfValue(OverlapReceives overlap) { return {std::string(overlapReceivesName(overlap))}; }
Texts textsOfValue(const Texts& texts) { return texts; }
Texts textsOfValue(int64_t bytes) { return {bytes == 0 ? "off" : std::to_string(bytes)}; }

void setValue(std::string_view, const Texts& texts, OptimizerSpec& optimizer) {
  optimizer = parseOptimizer(texts.at(0));
}
void setValue(std::string_view flag, const Texts& texts, DataType& type) {
  const bool single = texts.at(0) == "float32";
  if (!single && texts[0] != "float64")
    fail(ErrorCode::kUsage, "{} {}: expected float32 or float64", flag, texts[0]);
  type = single ? DataType::kFloat32 : DataType::kFloat64;
}
void setValue(std::string_view flag, const Texts& texts, OverlapReceives& overlap) {
  const std::optional<OverlapReceives> named = overlapReceivesFromName(texts.at(0));
  if (!named) fail(ErrorCode::kUsage, "{} {}: expected on, between-nodes or off", flag, texts[0]);
  overlap = *named;
}
void setValue(std::string_view, const Texts& texts, Texts& field) { field = texts; }
void setValue(std::string_view flag, const Texts& texts, int64_t& bytes) {
  bytes = texts.at(0) == "off" ? 0 : parseBytes(std::string(flag), texts[0]);
}

}  // namespace

std::span<const std::string_view> overlapReceivesNames() { return kOverlapNames; }

std::string_view overlapReceivesName(OverlapReceives overlap) {
  return kOverlapNames[static_cast<size_t>(overlap)];
}

std::optional<OverlapReceives> overlapReceivesFromName(std::string_view name) {
  const auto found = std::find(kOverlapNames.begin(), kOverlapNames.end(), name);
  if (found == kOverlapNames.end()) return std::nullopt;
  return static_cast<OverlapReceives>(found - kOverlapNames.begin());
}

std::span<const GivenOption> givenOptions() { return kOptions; }

GivenOptions defaultOptions() {
  GivenOptions options;
  for (const GivenOption& option : kOptions) {
    if (option.default_text != nullptr) setFromTexts(option, {option.default_text}, options);
  }
  return options;
}

bool isRepeated(const GivenOption& option) {
  return std::holds_alternative<Texts GivenOptions::*>(option.field);
}

// The last one, which does most, first.
std::vector<std::string> allowedTexts(const GivenOption& option) {
  if (!std::holds_alternative<OverlapReceives GivenOptions::*>(option.field)) return {};
  return {kOverlapNames.rbegin(), kOverlapNames.rend()};
}

bool isWritten(const GivenOption& option, const GivenOptions& options) {
  const auto differs = [&](auto field) { return options.*field != GivenOptions().*field; };
  return option.place == OptionPlace::kTraining || std::visit(differs, option.field);
}

std::vector<std::string> textsOf(const GivenOption& option, const GivenOptions& options) {
  return std::visit([&](auto field) { return textsOfValue(options.*field); }, option.field);
}

void setFromTexts(const GivenOption& option, const std::vector<std::string>& texts, GivenOptions& options) {
  std::visit([&](auto field) { setValue(option.flag, texts, options.*field); }, option.field);
}

}  // namespace pipeshard
