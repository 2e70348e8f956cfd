// What the user says (--train, --freeze) comes first. The exporter of PyTorch 2 marks parameters
// (InputSpec.kind PARAMETER, beside BUFFER and CONSTANT_TENSOR). Without any mark, a floating-point
// initializer is a parameter if it is not called like a buffer nor taken for a constant
// (ir/graph/weight_role.h), and
//   * it is the weight of a layer (the matrix of a MatMul or Gemm, the kernel of a Conv, the slope of a
//     PRelu, scale or bias of a normalisation; also through views), whatever it holds, also when it has one
//     element; or
//   * it is a tensor of one element, of shape [1] or [1,1] and not called like a constant, that is added to
//     the product of an activation with a weight: the bias of a layer with one output; or
//   * some operator reads it where a weight makes sense (not the choices of a Where, the limits of a Clip,
//     Max or Min, the exponent of a Pow, ...), and it was a tensor of the file, not
//     computed from constants; and
//     - it has several elements and is no additive mask, or
//     - it has one element and is called like a parameter ("fc.bias", but not "onnx::Mul_12", which may be
//       1/sqrt(d)), or has a name of the module's where all such numbers have others (isModuleTensor).
// What has all of that but the place is unclear, where a gradient may reach it: a learned token that a Where
// puts in, a learned limit, positions that are resized.
// An additive mask is held in memory and has numbers beyond 1e4 in magnitude and otherwise 0 and 1, or
// numbers beyond 1e8.
#include "ir/operators/initializer_role.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"

namespace pipeshard {

bool looksLikeMask(const Constant& constant) {
  if (constant.data_type != DataType::kFloat32 && constant.data_type != DataType::kFloat64) return false;
  const std::vector<double> elements = numericElements(constant);
  const auto any = [&](auto f) { return std::any_of(elements.begin(), elements.end(), f); };
  if (any([](double x) { return std::abs(x) > 1e8; })) return true;
  return any([](double x) { return std::abs(x) > 1e4; }) &&
         !any([](double x) { return x != 0 && x != 1 && !(std::abs(x) > 1e4); });
}

namespace {

// By what it holds and how it is called.
bool looksLikeWeight(const Value& value, const Initializer& initializer) {
  if (elementCount(*value.shape) == 1) return isModuleTensor(value) || namesParameter(value.name);
  const Constant* constant = std::get_if<Constant>(&initializer);
  return elementCount(*value.shape) > 1 && (constant == nullptr || !looksLikeMask(*constant));
}

struct Uses {
  bool read = false;
  bool as_weight = false;
  bool in_layer = false;
  bool in_arithmetic = false;  // where a gradient may reach it
};

// By value index: the file has it, or it is computed of such alone.
std::vector<bool> givenByFile(const Graph& graph) {
  std::vector<bool> given(graph.values.size(), false);
  for (const auto& [id, initializer] : graph.initializers) given[id.index()] = true;
  for (const Node& node : graph.nodes) {
    const bool all = std::all_of(node.inputs.begin(), node.inputs.end(),
                                 [&](ValueId id) { return !id.valid() || given[id.index()]; });
    if (!all || operatorFacts(node).is_random) continue;
    for (ValueId id : node.outputs) {
      if (id.valid()) given[id.index()] = true;
    }
  }
  return given;
}

// By value index: the product of an activation with a weight, or a sum of such, which has no bias yet.
std::vector<bool> productsWithoutBias(const Graph& graph) {
  const std::vector<bool> given = givenByFile(graph);
  std::vector<bool> products(graph.values.size(), false);
  const auto is = [](const std::vector<bool>& set, const Node& node, size_t i) {
    return i < node.inputs.size() && node.inputs[i].valid() && set[node.inputs[i].index()];
  };
  for (const Node& node : graph.nodes) {
    if (node.inputs.empty() || node.outputs.empty() || !node.outputs[0].valid()) continue;
    const OperatorFacts& facts = operatorFacts(node);
    const size_t bias = facts.added_input;  // of none: behind all inputs
    const bool multiplies = facts.multiplies_matrices || facts.work == WorkClass::kConvolution;
    bool product = false;
    if (multiplies && (bias >= node.inputs.size() || !node.inputs[bias].valid()))
      product = is(given, node, 0) != is(given, node, 1);
    if (facts.view != View::kNone) product = is(products, node, 0);
    if (node.is("Add")) product = is(products, node, 0) && is(products, node, 1);
    products[node.outputs[0].index()] = product;
  }
  return products;
}

bool mayBeBias(const Value& value) {
  return value.shape && !value.shape->empty() && isStatic(*value.shape) && elementCount(*value.shape) == 1 &&
         !isFolded(value) && !namesConstant(value.name);
}

// Where layers have their weights, by place: the bias that is added behind, and what a view shows.
void addPlaces(const Graph& graph, std::vector<Uses>& uses) {
  const std::vector<bool> products = productsWithoutBias(graph);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    if (node.inputs.empty() || node.outputs.empty() || !node.inputs[0].valid() || !node.outputs[0].valid())
      continue;
    if (operatorFacts(node).view != View::kNone && uses[node.outputs[0].index()].in_layer)
      uses[node.inputs[0].index()].in_layer = true;
    if (!node.is("Add") || node.inputs.size() != 2 || !node.inputs[1].valid()) continue;
    for (const auto& [bias, other] : {std::pair(0, 1), std::pair(1, 0)}) {
      if (products[node.inputs[other].index()] && mayBeBias(graph.value(node.inputs[bias])))
        uses[node.inputs[bias].index()].in_layer = true;
    }
  }
}

std::vector<Uses> usesOf(const Graph& graph) {
  std::vector<Uses> uses(graph.values.size());
  for (const Node& node : graph.nodes) {
    const OperatorFacts& facts = operatorFacts(node);
    const bool numbers = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) {
      return id.valid() &&
             (graph.dataType(id) == DataType::kUndefined || isFloatingPoint(graph.dataType(id)));
    });
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid()) continue;
      Uses& use = uses[node.inputs[i].index()];
      use.read = true;
      use.as_weight = use.as_weight || !facts.settings.contains(i);
      use.in_layer = use.in_layer || facts.layer_weights.contains(i);
      use.in_arithmetic = use.in_arithmetic || (numbers && (facts.work == WorkClass::kElementwise ||
                                                            (facts.work == WorkClass::kMovement && i == 0)));
    }
  }
  addPlaces(graph, uses);
  return uses;
}

InitializerRole roleOf(const Value& value, const Initializer& initializer, const Uses& uses, bool marked) {
  using enum InitializerRole;
  if (!isFloatingPoint(value.data_type)) return kSetting;
  if (const auto trained = trainedByUser(value)) return *trained ? kParameter : kFrozen;
  if (isMarkedParameter(value)) return kParameter;
  if (exportedKind(value)) return kBuffer;
  const InitializerRole number = uses.read && !uses.as_weight ? kSetting : kConstant;
  if (marked || namesBuffer(value.name) || isMade(value) || isTakenForConstant(value)) return number;
  if (uses.in_layer || isLayerWeight(value)) return kParameter;
  if (isFolded(value) || !looksLikeWeight(value, initializer)) return number;
  if (uses.as_weight) return kParameter;
  return !uses.read || uses.in_arithmetic ? kUnclear : kSetting;
}

}  // namespace

std::vector<InitializerRole> initializerRoles(const Graph& graph) {
  const bool marked =
      std::any_of(graph.initializers.begin(), graph.initializers.end(), [&](const auto& entry) {
        return isMarkedParameter(graph.value(entry.first)) && isFloatingPoint(graph.dataType(entry.first));
      });
  const std::vector<Uses> uses = usesOf(graph);
  std::vector<InitializerRole> roles(graph.values.size(), InitializerRole::kNone);
  for (const auto& [id, initializer] : graph.initializers)
    roles[id.index()] = roleOf(graph.value(id), initializer, uses[id.index()], marked);
  return roles;
}

std::vector<ValueId> runningStatistics(const Graph& graph) {
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(), normalizesByBatch)) return {};
  constexpr size_t kFirstStatistic = 3;  // mean and variance stand behind scale and bias
  const std::vector<NodeId> producer = computeUseDef(graph).producer;
  const auto handsOn = [](const Node& node) {
    return !node.inputs.empty() && (isView(node) || node.is("Cast") || node.is("CastLike"));
  };
  std::vector<ValueId> found;
  for (const Node& node : graph.nodes) {
    if (!normalizesByBatch(node)) continue;
    for (size_t i = kFirstStatistic; i < node.inputs.size(); ++i) {
      ValueId source = node.inputs[i];
      while (source.valid() && producer[source.index()].valid()) {
        const Node& maker = graph.node(producer[source.index()]);
        source = handsOn(maker) ? maker.inputs[0] : ValueId();
      }
      const bool is_of_file =
          source.valid() && graph.initializers.contains(source) && !isFolded(graph.value(source));
      if (is_of_file && std::find(found.begin(), found.end(), source) == found.end()) found.push_back(source);
    }
  }
  return found;
}

void keepLayerWeights(Graph& graph) {
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  for (const auto& [id, initializer] : graph.initializers) {
    Value& value = graph.value(id);
    const bool by_place = roles[id.index()] == InitializerRole::kParameter && !isMarkedParameter(value) &&
                          !trainedByUser(value) && !isFolded(value) && !looksLikeWeight(value, initializer);
    if (by_place && !isLayerWeight(value)) value.metadata.emplace_back(kLayerWeight, "yes");
  }
}

}  // namespace pipeshard
