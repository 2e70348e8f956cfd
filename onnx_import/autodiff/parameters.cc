#include "onnx_import/autodiff/parameters.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/name_pattern.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/initializer_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

constexpr size_t kMostNames = 12;  // in a note

// The floating-point initializers that the pattern means.
std::vector<ValueId> matching(const Graph& graph, const std::string& option, const std::string& pattern,
                              const std::vector<std::string>& lost) {
  const NamePattern expression(fmt::format("{} '{}'", option, pattern), pattern);
  std::vector<ValueId> found;
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    if (!isFloatingPoint(graph.dataType(id))) continue;
    names.push_back(allNames(graph.value(id)));
    if (isNamedBy(expression, graph.value(id))) found.push_back(id);
  }
  const bool is_lost = std::any_of(lost.begin(), lost.end(),
                                   [&](const std::string& name) { return expression.isFoundIn(name); });
  if (found.empty() && !is_lost) {
    if (names.size() > kMostNames) names.resize(kMostNames);
    fail(ErrorCode::kUsage, "{} '{}' is found in no floating-point weight's name; such names are {}", option,
         pattern, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  return found;
}

// By value index: a gradient of the loss reaches it. Without a loss: everything.
std::vector<bool> reachedFrom(const Graph& graph, ValueId loss) {
  if (!loss.valid()) return std::vector<bool>(graph.values.size(), true);
  std::vector<bool> reached(graph.values.size(), false);
  reached[loss.index()] = true;
  const auto carries = [&](ValueId id) {
    if (!id.valid() || !reached[id.index()]) return false;
    const DataType type = graph.dataType(id);
    return type == DataType::kUndefined || isFloatingPoint(type);
  };
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    if (!std::any_of(node.outputs.begin(), node.outputs.end(), carries)) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i].valid() && passesGradient(node, i)) reached[node.inputs[i].index()] = true;
    }
  }
  return reached;
}

// A matrix or more of numbers of at most 8 bits, but no truth values: what a scale and a zero point make a
// weight of.
bool holdsCodes(const Value& value) {
  const bool four_bits = value.data_type == DataType::kInt4 || value.data_type == DataType::kUint4;
  const bool eight_bits = isInteger(value.data_type) && dataTypeSize(value.data_type) == 1;
  return (four_bits || eight_bits) && std::ssize(*value.shape) >= 2 && elementCount(*value.shape) > 1;
}

bool isSparse(const Node& node) { return node.is("Constant") && node.attributes.contains("sparse_value"); }

// Of a module, in a file of an exporter that calls its own constants "onnx::Mul_12" or "/block/Constant".
bool mayBeAttribute(const std::string& name) {
  return !name.empty() && std::isalpha(static_cast<unsigned char>(name.front())) != 0 &&
         name.find("::") == std::string::npos;
}

// Computed by the exporter from buffers and constants alone, such as the angles of rotary positions.
bool isOfNoParameter(const Value& value, const std::set<std::string>& parameters) {
  const std::vector<std::string> sources = foldedFrom(value);
  return !sources.empty() && std::none_of(sources.begin(), sources.end(), [&](const std::string& source) {
    return parameters.contains(source);
  });
}

// The names in the file of what is taken for constants, each once.
void addConstantNames(const Value& value, InitializerRole role, std::vector<std::string>& names) {
  const bool constant = role == InitializerRole::kConstant;
  if (constant && !isFolded(value)) names.push_back(value.name);
  if (!constant && role != InitializerRole::kFrozen) return;
  for (const std::string& name : foldedConstants(value)) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
}

}  // namespace

std::vector<ValueId> trainableParameters(const Graph& graph) {
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  std::vector<ValueId> result;
  for (const auto& [id, initializer] : graph.initializers) {
    if (roles[id.index()] == InitializerRole::kParameter) result.push_back(id);
  }
  return result;
}

std::vector<ValueId> constantParameters(const Graph& graph, ValueId loss) {
  std::vector<bool> changes = reachedFrom(graph, loss);
  for (const Node& node : graph.nodes) {
    if (!node.is("BatchNormalization")) continue;
    for (const size_t statistic : {3, 4}) {
      if (statistic < node.inputs.size() && node.inputs[statistic].valid())
        changes[node.inputs[statistic].index()] = true;
    }
  }
  std::vector<ValueId> constant = trainableParameters(graph);
  std::erase_if(constant, [&](ValueId id) { return changes[id.index()]; });
  return constant;
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

std::string trainedSummary(const Graph& graph, ValueId loss) {
  const std::vector<ValueId> trainable = trainableParameters(graph);
  const std::vector<bool> reached = reachedFrom(graph, loss);
  int64_t elements = 0, all = 0, tensors = 0;
  FrozenWeights frozen;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!isFloatingPoint(value.data_type)) continue;
    const bool is_trainable = std::binary_search(trainable.begin(), trainable.end(), id);
    const FrozenWeights weights = frozenWeights(value);
    if (weights.empty() && (is_trainable || isMarkedParameter(value))) all += elementCount(graph.shape(id));
    frozen.insert(weights.begin(), weights.end());
    if (!is_trainable || !reached[id.index()]) continue;
    elements += elementCount(graph.shape(id));
    ++tensors;
  }
  for (const auto& [name, count] : frozen) all += count;
  return fmt::format("trains {} of {} parameters in {} tensors", elements, all, tensors);
}

void refuseUnclearWeights(const Graph& graph) {
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    if (roles[id.index()] == InitializerRole::kUnclear) names.push_back(graph.value(id).name);
  }
  if (names.empty()) return;
  fail(ErrorCode::kBadModel,
       "the file does not tell whether the module trains {}: operators read {} as a choice or limit, where "
       "weights are seldom. --train NAME_REGEX trains {}, --freeze NAME_REGEX leaves {} as in the file",
       listed(names, kMostNames), names.size() == 1 ? "it" : "them", names.size() == 1 ? "it" : "them",
       names.size() == 1 ? "it" : "them");
}

void refuseQuantizedOrSparse(const Graph& graph, const std::vector<std::string>& train) {
  std::vector<std::string> what, sparse;
  for (const Node& node : graph.nodes) {
    if (isSparse(node)) sparse.push_back(graph.value(node.outputs[0]).name);
    if (operatorFacts(node).is_quantized && std::ranges::find(what, node.op_type) == what.end())
      what.push_back(node.op_type);
  }
  if (!sparse.empty()) {
    fail(
        ErrorCode::kBadModel,
        "the file has sparse tensors (sparse_initializer or sparse_value): {}: they cannot be trained; store "
        "them as dense initializers",
        listed(sparse, kMostNames));
  }
  if (what.empty() || !train.empty()) return;
  fail(
      ErrorCode::kBadModel,
      "the file is quantised ({}): quantised weights cannot be trained; train the file it was made from. Or, "
      "to train what is around them: --train NAME_REGEX",
      listed(what, kMostNames));
}

std::string quantizedNote(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!holdsCodes(value)) continue;
    names.push_back(
        fmt::format("{} ({} {})", value.name, dataTypeName(value.data_type), shapeToString(*value.shape)));
  }
  return names.empty() ? "" : fmt::format("quantized weights, not trained: {}", listed(names, kMostNames));
}

std::vector<std::string> parameterNotes(const Graph& graph, ValueId loss) {
  const std::vector<bool> reached = reachedFrom(graph, loss);
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  const bool marked =
      std::any_of(graph.initializers.begin(), graph.initializers.end(),
                  [&](const auto& entry) { return isMarkedParameter(graph.value(entry.first)); });
  // where the file has a list of all
  const std::set<std::string> parameters = signatureParameterNames(graph);
  const bool tells_all = !parameters.empty();
  std::vector<std::string> frozen, constants, single, beside;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    const bool one = elementCount(*value.shape) == 1;
    const InitializerRole role = roles[id.index()];
    if (role == InitializerRole::kFrozen) {
      for (const auto& [name, elements] : frozenWeights(value)) {
        if (std::find(frozen.begin(), frozen.end(), name) == frozen.end()) frozen.push_back(name);
      }
    }
    if (role == InitializerRole::kParameter && !reached[id.index()]) beside.push_back(value.name);
    const bool is_known = marked && (isFolded(value) || (tells_all ? one || isOfNoParameter(value, parameters)
                                                                   : one && !mayBeAttribute(value.name)));
    if (!is_known) addConstantNames(value, role, constants);
    if (role == InitializerRole::kParameter && one && !exportedKind(value) && !isFolded(value) &&
        !trainedByUser(value))
      single.push_back(value.name);
  }
  std::vector<std::string> notes;
  if (!frozen.empty())
    notes.push_back(
        fmt::format("not trained (--freeze, or no gradient in the file): {}", listed(frozen, kMostNames)));
  if (!beside.empty())
    notes.push_back(
        fmt::format("no gradient of the loss reaches these parameters, which stay as they are: {}",
                    listed(beside, kMostNames)));
  if (!constants.empty())
    notes.push_back(fmt::format("taken for constants, not trained: {} (--train NAME_REGEX trains them)",
                                listed(constants, kMostNames)));
  if (!single.empty())
    notes.push_back(
        fmt::format("trained although they have one element: {} (--freeze NAME_REGEX leaves them out)",
                    listed(single, kMostNames)));
  return notes;
}

}  // namespace pipeshard
