#include "ir/graph/weight_role.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/tensor_box.h"

namespace pipeshard {
namespace {

// On initializers that are not the file's.
constexpr const char* kConstantMark = "pipeshard.constant";
constexpr const char* kFolded = "folded";
constexpr const char* kMade = "made";

constexpr const char* kTakenForConstant = "pipeshard.taken_for_constant";

constexpr const char* kModuleTensor = "pipeshard.module_tensor";

constexpr const char* kStoredTransposed = "pipeshard.transposed";

// On what was computed of a weight that the user does not train: "768 fc.weight".
constexpr const char* kFrozenWeight = "pipeshard.frozen_weight";

// On what was computed of what is taken for a constant: its name.
constexpr const char* kFoldedConstant = "pipeshard.folded_constant";

// Words for a learned number, wherever they stand alone; "scale", "alpha" and the like need a module before
// them.
constexpr std::string_view kParameterWords[] = {"weight", "bias",        "kernel",        "slope",
                                                "gain",   "temperature", "logit_bias",    "logit_scale",
                                                "gamma",  "embedding",   "readvariableop"};
constexpr std::string_view kParameterEnds[] = {"_weight", "_bias", "_kernel", "_temperature"};
constexpr std::string_view kConstantWords[] = {"eps",     "epsilon", "momentum", "const", "constant",
                                               "dropout", "p",       "min",      "max",   "inf"};
constexpr std::string_view kBufferWords[] = {
    "inv_freq",    "cos_cached",  "sin_cached",   "freqs_cis",           "running_mean",
    "running_var", "moving_mean", "position_ids", "num_batches_tracked", "moving_variance"};

template <size_t n>
bool isOneOf(const std::string_view (&words)[n], std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

bool isNumber(std::string_view part) {
  return std::all_of(part.begin(), part.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

// "model/dense/bias:0" -> model, dense, bias: in lower case, without a number at the end.
std::vector<std::string> partsOf(std::string_view name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.' || c == '/' || c == ':') {
      parts.emplace_back();
    } else {
      parts.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  while (parts.size() > 1 && isNumber(parts.back())) parts.pop_back();
  return parts;
}

// "layers.0.act.alpha": identifiers and numbers with dots between them.
bool isModulePath(std::string_view name) {
  return name.find('.') != std::string_view::npos && name.front() != '.' && name.back() != '.' &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.'; });
}

bool hasMark(const Value& value, std::string_view key) {
  return std::any_of(value.metadata.begin(), value.metadata.end(),
                     [&](const auto& entry) { return entry.first == key; });
}

}  // namespace

void markFolded(Value& value) { value.metadata.emplace_back(kConstantMark, kFolded); }

void markMade(Value& value) { value.metadata.emplace_back(kConstantMark, kMade); }

bool isFolded(const Value& value) { return hasMark(value, kConstantMark); }

bool isMade(const Value& value) {
  return std::any_of(value.metadata.begin(), value.metadata.end(),
                     [](const auto& entry) { return entry.first == kConstantMark && entry.second == kMade; });
}

void markTakenForConstant(Value& value) { value.metadata.emplace_back(kTakenForConstant, "yes"); }

bool isTakenForConstant(const Value& value) { return hasMark(value, kTakenForConstant); }

void markModuleTensor(Value& value) { value.metadata.emplace_back(kModuleTensor, "yes"); }

bool isModuleTensor(const Value& value) { return hasMark(value, kModuleTensor); }

bool isLayerWeight(const Value& value) { return hasMark(value, kLayerWeight); }

void markStoredTransposed(Value& value) { value.metadata.emplace_back(kStoredTransposed, "true"); }

bool isStoredTransposed(const Value& value) { return hasMark(value, kStoredTransposed); }

std::optional<size_t> dividedAxis(const Value& value) {
  for (const auto& [key, axis] : value.metadata) {
    if (key == kDividedAxis) return std::stoul(axis);
  }
  return std::nullopt;
}

Shape storedShape(const Value& value) {
  const std::optional<size_t> axis = dividedAxis(value);
  return axis ? withAxesJoined(*value.shape, *axis) : *value.shape;
}

bool isStoredAs(const Shape& shape, const Shape& stored) {
  if (shape == stored) return true;
  for (size_t axis = 0; axis + 1 < shape.size(); ++axis) {
    if (withAxesJoined(shape, axis) == stored) return true;
  }
  return false;
}

std::optional<bool> trainedByUser(const Value& value) {
  for (const auto& [key, mark] : value.metadata) {
    if (key == kTrainedMark) return mark == "yes";
  }
  return std::nullopt;
}

FrozenWeights frozenWeights(const Value& value) {
  if (trainedByUser(value) != std::optional(false)) return {};
  FrozenWeights weights;
  for (const auto& [key, text] : value.metadata) {
    if (key == kFrozenWeight) weights.emplace(text.substr(text.find(' ') + 1), std::stoll(text));
  }
  if (weights.empty()) weights.emplace(value.name, elementCount(*value.shape));
  return weights;
}

void addFrozenWeights(Value& computed, const FrozenWeights& weights) {
  computed.metadata.emplace_back(kTrainedMark, "no");
  for (const auto& [name, elements] : weights)
    computed.metadata.emplace_back(kFrozenWeight, fmt::format("{} {}", elements, name));
}

std::set<std::string> foldedConstants(const Value& value) {
  std::set<std::string> names;
  for (const auto& [key, name] : value.metadata) {
    if (key == kFoldedConstant) names.insert(name);
  }
  return names;
}

void addFoldedConstants(Value& computed, const std::set<std::string>& names) {
  for (const std::string& name : names) computed.metadata.emplace_back(kFoldedConstant, name);
}

void addOtherName(Value& value, const std::string& name) {
  const std::vector<std::string> known = otherNames(value);
  if (name == value.name || std::find(known.begin(), known.end(), name) != known.end()) return;
  for (auto& [key, names] : value.metadata) {
    if (key != kOtherNames) continue;
    names += "\n" + name;
    return;
  }
  value.metadata.emplace_back(kOtherNames, name);
}

std::vector<std::string> otherNames(const Value& value) {
  std::vector<std::string> names;
  for (const auto& [key, lines] : value.metadata) {
    if (key != kOtherNames) continue;
    for (size_t begin = 0; begin < lines.size();) {
      const size_t end = std::min(lines.find('\n', begin), lines.size());
      names.push_back(lines.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return names;
}

std::string allNames(const Value& value) {
  const std::vector<std::string> others = otherNames(value);
  return others.empty() ? value.name : fmt::format("{} (also {})", value.name, fmt::join(others, ", "));
}

bool isNamedBy(const NamePattern& pattern, const Value& value) {
  const std::vector<std::string> others = otherNames(value);
  return pattern.isFoundIn(value.name) ||
         std::any_of(others.begin(), others.end(),
                     [&](const std::string& name) { return pattern.isFoundIn(name); });
}

std::optional<std::string_view> exportedKind(const Value& value) {
  for (const auto& [key, kind] : value.metadata) {
    if (key.ends_with("InputSpec.kind")) return kind;
  }
  return std::nullopt;
}

void setExportedKind(Value& value, std::string_view kind) {
  value.metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", kind);
}

bool namesParameter(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find("::") != std::string_view::npos || namesBuffer(name))
    return false;
  if (namesConstant(name)) return false;
  const std::string last = partsOf(name).back();
  if (isOneOf(kParameterWords, last) || isModulePath(name)) return true;
  return std::any_of(std::begin(kParameterEnds), std::end(kParameterEnds),
                     [&](std::string_view end) { return last.ends_with(end); });
}

// Of a spectral norm weight_v is a vector and a buffer; of a weight norm a parameter with the weight's axes.
bool isOfTorchLayer(const Value& value) {
  const std::string_view name = value.name;
  const std::string_view last = name.substr(name.find_last_of("./") + 1);
  if (last == "weight_v") return value.shape && value.shape->size() > 1;
  constexpr std::string_view kNames[] = {"weight",        "bias",          "weight_g",      "weight_orig",
                                         "original",      "original0",     "original1",     "in_proj_bias",
                                         "q_proj_weight", "k_proj_weight", "v_proj_weight", "bias_k",
                                         "bias_v",        "in_proj_weight"};
  constexpr std::string_view kRecurrent[] = {"weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh"};
  return isOneOf(kNames, last) ||
         std::any_of(std::begin(kRecurrent), std::end(kRecurrent),
                     [&](std::string_view begin) { return last.starts_with(begin); });
}

bool namesConstant(std::string_view name) {
  const std::string last = partsOf(name).back();
  return isOneOf(kConstantWords, last) || last.starts_with("constant");
}

bool namesBuffer(std::string_view name) {
  const std::string last = partsOf(name).back();
  return isOneOf(kBufferWords, last) || last == "mask" || last.ends_with("_mask");
}

}  // namespace pipeshard
