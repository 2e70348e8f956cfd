#include "onnx_import/autodiff/parameters.h"

#include <algorithm>
#include <cctype>
#include <set>

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

// What the exporter tells of the module's parameters.
struct ParameterMarks {
  explicit ParameterMarks(const Graph& graph)
      : any(std::any_of(graph.initializers.begin(), graph.initializers.end(),
                        [&](const auto& entry) { return isMarkedParameter(graph.value(entry.first)); })),
        listed(signatureParameterNames(graph)) {}

  bool any;                      // some initializers are marked: initializerRoles takes these alone
  std::set<std::string> listed;  // all that the module has; empty where the file has no list
};

bool isComputedOf(const std::set<std::string>& parameters, const Value& value) {
  const std::vector<std::string> sources = foldedFrom(value);
  return std::any_of(sources.begin(), sources.end(),
                     [&](const std::string& source) { return parameters.contains(source); });
}

// Computed by the exporter from buffers and constants alone, such as the angles of rotary positions.
bool isOfNoParameter(const Value& value, const std::set<std::string>& parameters) {
  return !foldedFrom(value).empty() && !isComputedOf(parameters, value);
}

// An initializer of the file that is none of the module's parameters by its marks. It may hold one.
bool isBesideParameters(const Value& value, const ParameterMarks& marks) {
  return marks.any && !isFolded(value) && !isMarkedParameter(value) && !marks.listed.contains(value.name);
}

// Nor does it hold one. `all_found`: the file has all parameters of the module under their names.
bool holdsNoParameter(const Value& value, const ParameterMarks& marks, bool all_found) {
  if (!isBesideParameters(value, marks)) return false;
  if (exportedKind(value)) return true;
  const bool one = elementCount(*value.shape) == 1;
  if (marks.listed.empty()) return one && !mayBeAttribute(value.name);
  return !isComputedOf(marks.listed, value) && (one || all_found || !foldedFrom(value).empty());
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

// What the user may take for a parameter and nothing is known of; where the file tells which are its
// parameters, the others are none.
std::vector<std::string> namesOfConstants(const Graph& graph) {
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  const ParameterMarks marks(graph);
  const bool tells_all = !marks.listed.empty();
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    const bool one = elementCount(*value.shape) == 1;
    const bool is_known =
        marks.any && (isFolded(value) || (tells_all ? one || isOfNoParameter(value, marks.listed)
                                                    : one && !mayBeAttribute(value.name)));
    if (!is_known) addConstantNames(value, roles[id.index()], names);
  }
  return names;
}

// The floating-point initializers that a pattern means.
struct Meant {
  std::vector<ValueId> parameters;  // or what may hold one
  std::vector<ValueId> others;      // holdsNoParameter
  bool is_lost = false;             // it means a parameter that the file has no more
};

Meant meantBy(const Graph& graph, const ParameterMarks& marks, const std::string& option,
              const std::string& pattern, const std::vector<std::string>& lost) {
  const NamePattern expression(fmt::format("{} '{}'", option, pattern), pattern);
  Meant meant;
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!isFloatingPoint(value.data_type) || isMade(value)) continue;
    const bool other = holdsNoParameter(value, marks, lost.empty());
    if (!other) names.push_back(allNames(value));
    if (isNamedBy(expression, value)) (other ? meant.others : meant.parameters).push_back(id);
  }
  meant.is_lost = std::any_of(lost.begin(), lost.end(),
                              [&](const std::string& name) { return expression.isFoundIn(name); });
  if (meant.parameters.empty() && meant.others.empty() && !meant.is_lost) {
    if (names.size() > kMostNames) names.resize(kMostNames);
    fail(ErrorCode::kUsage, "{} '{}' is found in no floating-point weight's name; such names are {}", option,
         pattern, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  }
  return meant;
}

void decideByUser(Graph& graph, const std::vector<ValueId>& weights, const char* mark) {
  for (ValueId id : weights) {
    Metadata& metadata = graph.value(id).metadata;
    std::erase_if(metadata, [](const auto& entry) { return entry.first == kTrainedMark; });
    metadata.emplace_back(kTrainedMark, mark);
  }
}

std::string namesOf(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<std::string> names;
  for (ValueId id : values) names.push_back(graph.value(id).name);
  return listed(names, kMostNames);
}

// Nothing trains it anyway: neither the user nor a gradient of the file has said so.
bool isLeftAnyway(const Graph& graph, ValueId id) { return trainedByUser(graph.value(id)) != true; }

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

std::vector<std::string> overrideParameters(Graph& graph, const std::vector<std::string>& train,
                                            const std::vector<std::string>& freeze,
                                            const std::vector<std::string>& lost) {
  const ParameterMarks marks(graph);
  std::vector<std::string> notes;
  for (const std::string& pattern : freeze) {
    Meant meant = meantBy(graph, marks, "--freeze", pattern, lost);
    const std::vector<ValueId> asked = meant.others;
    std::erase_if(meant.others, [&](ValueId id) { return isLeftAnyway(graph, id); });
    if (meant.parameters.empty() && meant.others.empty() && !meant.is_lost)
      notes.push_back(fmt::format("--freeze '{}' means no parameter of the module; nothing trains {} anyway",
                                  pattern, namesOf(graph, asked)));
    decideByUser(graph, meant.others, "no");
    decideByUser(graph, meant.parameters, "no");
  }
  std::set<ValueId> left_out;
  for (const std::string& pattern : train) {  // these win
    const Meant meant = meantBy(graph, marks, "--train", pattern, lost);
    const bool means_parameters = !meant.parameters.empty() || meant.is_lost;
    decideByUser(graph, means_parameters ? meant.parameters : meant.others, "yes");
    if (means_parameters) left_out.insert(meant.others.begin(), meant.others.end());
  }
  std::vector<ValueId> left(left_out.begin(), left_out.end());
  std::erase_if(left, [&](ValueId id) { return !isLeftAnyway(graph, id); });
  if (!left.empty())
    notes.push_back(
        fmt::format("--train means parameters of the module; no parameters, and left out, are {} (an "
                    "expression that is found in no parameter's name trains them)",
                    namesOf(graph, left)));
  return notes;
}

std::string trainedSummary(const Graph& graph, ValueId loss) {
  const std::vector<ValueId> trainable = trainableParameters(graph);
  const std::vector<bool> reached = reachedFrom(graph, loss);
  const ParameterMarks marks(graph);
  int64_t elements = 0, all = 0, tensors = 0, beside = 0, beside_tensors = 0;
  FrozenWeights frozen;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!isFloatingPoint(value.data_type)) continue;
    const bool is_trainable = std::binary_search(trainable.begin(), trainable.end(), id);
    const bool is_trained = is_trainable && reached[id.index()];
    const int64_t count = elementCount(*value.shape);
    if (is_trainable && isBesideParameters(value, marks)) {
      beside += is_trained ? count : 0;
      beside_tensors += is_trained ? 1 : 0;
      continue;
    }
    if (holdsNoParameter(value, marks, false)) continue;
    const FrozenWeights weights = frozenWeights(value);
    if (weights.empty() && (is_trainable || isMarkedParameter(value))) all += count;
    frozen.insert(weights.begin(), weights.end());
    if (!is_trained) continue;
    elements += count;
    ++tensors;
  }
  for (const auto& [name, count] : frozen) all += count;
  std::string text = fmt::format("trains {} of {} parameters in {} tensors", elements, all, tensors);
  if (beside_tensors > 0)
    text += fmt::format(", and {} in {} beside the parameters", counted(beside, "element"),
                        counted(beside_tensors, "tensor"));
  const size_t constants = namesOfConstants(graph).size();
  return constants > 0 ? fmt::format("{}; {} taken for constants", text, constants) : text;
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
  const std::vector<std::string> constants = namesOfConstants(graph);
  const ParameterMarks marks(graph);
  std::vector<std::string> frozen, single, unreached, beside;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    const bool one = elementCount(*value.shape) == 1;
    const InitializerRole role = roles[id.index()];
    if (role == InitializerRole::kFrozen && !holdsNoParameter(value, marks, false)) {
      for (const auto& [name, elements] : frozenWeights(value)) {
        if (std::find(frozen.begin(), frozen.end(), name) == frozen.end()) frozen.push_back(name);
      }
    }
    if (role == InitializerRole::kParameter && !reached[id.index()]) unreached.push_back(value.name);
    if (role == InitializerRole::kParameter && reached[id.index()] && isBesideParameters(value, marks))
      beside.push_back(value.name);
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
        fmt::format("trained, though no parameter of the module: {}", listed(beside, kMostNames)));
  if (!unreached.empty())
    notes.push_back(
        fmt::format("no gradient of the loss reaches these parameters, which stay as they are: {}",
                    listed(unreached, kMostNames)));
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
