// Which initializers are trained.
//
// What the user says (--train, --freeze) comes first. The exporter of PyTorch 2 marks parameters
// (InputSpec.kind PARAMETER, beside BUFFER and CONSTANT_TENSOR). Without any mark, a floating-point
// initializer is a parameter if it is not called like a buffer (ir/graph/weight_role.h), and
//   * it is the weight of a layer (the matrix of a MatMul or Gemm, the kernel of a Conv, the slope of a
//     PRelu, scale or bias of a normalisation), whatever it holds, also when it has one element; or
//   * some operator reads it where a weight makes sense (not the choices of a Where, the limits of a Clip,
//     Max or Min, the exponent of a Pow, ...), and it was an initializer in the file: no Constant node, and
//     not computed from constants; and
//     - it has several elements and is no additive mask, or
//     - it has one element and is called like a parameter: "fc.bias", but not "onnx::Mul_12", which may be
//       1/sqrt(d).
// An additive mask is held in memory and has numbers beyond 1e4 in magnitude and otherwise 0 and 1, or
// numbers beyond 1e8.
#include "onnx_import/autodiff/parameters.h"

#include <algorithm>
#include <cmath>
#include <regex>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {
namespace {

constexpr size_t kMostNames = 12;  // in a note

bool looksLikeMask(const Constant& constant) {
  if (constant.data_type != DataType::kFloat32 && constant.data_type != DataType::kFloat64) return false;
  const std::vector<double> elements = numericElements(constant);
  const auto any = [&](auto f) { return std::any_of(elements.begin(), elements.end(), f); };
  if (any([](double x) { return std::abs(x) > 1e8; })) return true;
  return any([](double x) { return std::abs(x) > 1e4; }) &&
         !any([](double x) { return x != 0 && x != 1 && !(std::abs(x) > 1e4); });
}

struct Uses {
  bool as_weight = false;
  bool in_layer = false;
};

bool isGuessedParameter(const Graph& graph, ValueId id, const Initializer& initializer, const Uses& uses) {
  const Value& value = graph.value(id);
  if (!isFloatingPoint(value.data_type) || namesBuffer(value.name) || isMade(value)) return false;
  if (uses.in_layer) return true;
  if (!uses.as_weight || isFolded(value)) return false;
  if (elementCount(*value.shape) == 1) return namesParameter(value.name);
  const Constant* constant = std::get_if<Constant>(&initializer);
  return elementCount(*value.shape) > 1 && (constant == nullptr || !looksLikeMask(*constant));
}

std::vector<Uses> usesOf(const Graph& graph) {
  std::vector<Uses> uses(graph.values.size());
  for (const Node& node : graph.nodes) {
    const OperatorFacts& facts = operatorFacts(node);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid()) continue;
      Uses& use = uses[node.inputs[i].index()];
      use.as_weight = use.as_weight || !facts.settings.contains(i);
      use.in_layer = use.in_layer || facts.layer_weights.contains(i);
    }
  }
  return uses;
}

std::vector<ValueId> guessParameters(const Graph& graph) {
  const std::vector<Uses> uses = usesOf(graph);
  std::vector<ValueId> result;
  for (const auto& [id, initializer] : graph.initializers) {
    if (isGuessedParameter(graph, id, initializer, uses[id.index()])) result.push_back(id);
  }
  return result;
}

bool hasMarks(const Graph& graph) {
  return std::any_of(graph.initializers.begin(), graph.initializers.end(), [&](const auto& entry) {
    return isMarkedParameter(graph.value(entry.first)) && isFloatingPoint(graph.dataType(entry.first));
  });
}

// The floating-point initializers whose names the pattern is found in.
std::vector<ValueId> matching(const Graph& graph, const std::string& option, const std::string& pattern,
                              const std::vector<std::string>& lost) {
  std::regex regex;
  try {
    regex.assign(pattern, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    fail(ErrorCode::kUsage, "{} '{}' is no regular expression: {}", option, pattern, error.what());
  }
  std::vector<ValueId> found;
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    if (!isFloatingPoint(graph.dataType(id))) continue;
    names.push_back(graph.value(id).name);
    if (std::regex_search(graph.value(id).name, regex)) found.push_back(id);
  }
  const bool is_lost = std::any_of(lost.begin(), lost.end(),
                                   [&](const std::string& name) { return std::regex_search(name, regex); });
  if (found.empty() && !is_lost) {
    if (names.size() > kMostNames) names.resize(kMostNames);
    fail(ErrorCode::kUsage, "{} '{}' is found in no floating-point weight's name; such names are {}", option,
         pattern, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  return found;
}

std::string listNames(const std::vector<std::string>& names) {
  if (names.size() <= kMostNames) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.begin(), names.begin() + kMostNames, ", "),
                     names.size() - kMostNames);
}

}  // namespace

std::vector<ValueId> trainableParameters(const Graph& graph) {
  const bool marked = hasMarks(graph);
  const std::vector<ValueId> guessed = marked ? std::vector<ValueId>() : guessParameters(graph);
  std::vector<ValueId> result;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!isFloatingPoint(value.data_type)) continue;
    const bool by_itself =
        marked ? isMarkedParameter(value) : std::binary_search(guessed.begin(), guessed.end(), id);
    if (trainedByUser(value).value_or(by_itself)) result.push_back(id);
  }
  return result;
}

void overrideParameters(Graph& graph, const std::vector<std::string>& train,
                        const std::vector<std::string>& freeze, const std::vector<std::string>& lost) {
  for (const auto& [option, patterns, mark] :
       {std::tuple("--freeze", &freeze, "no"), std::tuple("--train", &train, "yes")}) {  // the later one wins
    for (const std::string& pattern : *patterns) {
      for (ValueId id : matching(graph, option, pattern, lost)) {
        Metadata& metadata = graph.value(id).metadata;
        std::erase_if(metadata, [](const auto& entry) { return entry.first == kTrainedMark; });
        metadata.emplace_back(kTrainedMark, mark);
      }
    }
  }
}

std::string trainedSummary(const Graph& graph) {
  const std::vector<ValueId> trained = trainableParameters(graph);
  int64_t elements = 0, all = 0;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!isFloatingPoint(value.data_type)) continue;
    const bool is_trained = std::binary_search(trained.begin(), trained.end(), id);
    const bool counts = isMarkedParameter(value) || trainedByUser(value) == std::optional(false);
    if (is_trained) elements += elementCount(graph.shape(id));
    if (is_trained || counts) all += elementCount(graph.shape(id));
  }
  return fmt::format("trains {} of {} parameters in {} tensors", elements, all, trained.size());
}

std::vector<std::string> parameterNotes(const Graph& graph) {
  const std::vector<ValueId> trained = trainableParameters(graph);
  const std::vector<Uses> uses = usesOf(graph);
  const bool marked = hasMarks(graph);
  std::vector<std::string> frozen, constants, single;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!isFloatingPoint(value.data_type)) continue;
    const bool is_trained = std::find(trained.begin(), trained.end(), id) != trained.end();
    if (const auto decided = trainedByUser(value)) {
      if (!*decided) frozen.push_back(value.name);
    } else if (exportedKind(value) || isFolded(value)) {
      continue;
    } else if (!is_trained && uses[id.index()].as_weight && !(marked && elementCount(*value.shape) == 1)) {
      constants.push_back(value.name);
    } else if (is_trained && elementCount(*value.shape) == 1) {
      single.push_back(value.name);
    }
  }
  std::vector<std::string> notes;
  if (!frozen.empty())
    notes.push_back(fmt::format("not trained (--freeze, or no gradient in the file): {}", listNames(frozen)));
  if (!constants.empty())
    notes.push_back(fmt::format("taken for constants, not trained: {} (--train NAME_REGEX trains them)",
                                listNames(constants)));
  if (!single.empty())
    notes.push_back(
        fmt::format("trained although they have one element: {} (--freeze NAME_REGEX leaves them out)",
                    listNames(single)));
  return notes;
}

}  // namespace pipeshard
