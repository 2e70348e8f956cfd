#include "onnx_import/patterns/straight_through.h"

#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/graph/stopped_gradient.h"
#include "ir/operators/initializer_role.h"
#include "onnx_import/autodiff/gradient_rules.h"

namespace pipeshard {
namespace {

bool holdsNoGradient(DataType type) { return type == DataType::kBool || isInteger(type); }

// Also where types are not known yet.
bool passesGradientOn(const Graph& graph, const Node& node, size_t input) {
  const auto type = static_cast<DataType>(node.is("Cast") ? node.intAttribute("to", 0) : 0);
  return passesGradient(node, input) && !holdsNoGradient(type) &&
         !holdsNoGradient(graph.dataType(node.inputs[input]));
}

// By value, whether a gradient of it reaches one of `from`.
std::vector<bool> reachedByGradients(const Graph& graph, std::vector<bool> from) {
  for (const Node& node : graph.nodes) {
    bool any = false;
    for (size_t i = 0; i < node.inputs.size() && !any; ++i)
      any = node.inputs[i].valid() && from[node.inputs[i].index()] && passesGradientOn(graph, node, i);
    for (const ValueId output : node.outputs)
      if (output.valid() && any) from[output.index()] = true;
  }
  return from;
}

// Does `value` depend on the elements of x on some way that no gradient passes?
bool dependsInSteps(const Graph& graph, ValueId x, ValueId value) {
  std::vector<bool> depends(graph.values.size(), false), in_steps(graph.values.size(), false);
  depends[x.index()] = true;
  for (const Node& node : graph.nodes) {
    if (node.is("Shape") || node.is("Size")) continue;
    bool any = false, stopped = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid() || !depends[node.inputs[i].index()]) continue;
      any = true;
      stopped = stopped || in_steps[node.inputs[i].index()] || !passesGradientOn(graph, node, i);
    }
    for (const ValueId output : node.outputs) {
      if (!output.valid() || !any) continue;
      depends[output.index()] = true;
      in_steps[output.index()] = stopped;
    }
  }
  return value.valid() && in_steps[value.index()];
}

class Cancelling {
 public:
  explicit Cancelling(const Graph& graph) : graph_(graph), uses_(computeUseDef(graph)) {
    const std::vector<InitializerRole> roles = initializerRoles(graph);
    std::vector<bool> parameters(roles.size());
    for (size_t i = 0; i < roles.size(); ++i) parameters[i] = roles[i] == InitializerRole::kParameter;
    trained_ = reachedByGradients(graph, std::move(parameters));
  }

  // The value that the node's result does not depend on, though it is computed of it.
  std::optional<ValueId> cancelledIn(const Node& node) const {
    const bool adds = node.is("Add"), subtracts = node.is("Sub");
    if ((!adds && !subtracts && !node.is("Div")) || node.inputs.size() != 2) return std::nullopt;
    if (!node.inputs[0].valid() || !node.inputs[1].valid()) return std::nullopt;
    const ValueId a = sourceOf(node.inputs[0]), b = sourceOf(node.inputs[1]);
    if (!adds && a == b && trained_[a.index()]) return a;
    if (adds && isStepLess(b, a)) return a;           // x + (f - x)
    if (adds && isStepLess(a, b)) return b;           // (f - x) + x
    if (subtracts && isDifferenceOf(a, b)) return a;  // x - (x - f)
    if (subtracts && isStepAddedTo(b, a)) return b;   // (f + x) - x
    return std::nullopt;
  }

 private:
  // Behind copies.
  ValueId sourceOf(ValueId value) const {
    for (const Node* node = producerIn(value);
         node != nullptr && node->is("Identity") && !stopsGradient(*node); node = producerIn(value))
      value = node->inputs[0];
    return value;
  }
  const Node* producerIn(ValueId value) const {
    if (!value.valid()) return nullptr;
    const NodeId producer = uses_.producer[value.index()];
    return producer.valid() ? &graph_.node(producer) : nullptr;
  }
  bool isStep(ValueId f, ValueId x) const { return trained_[x.index()] && dependsInSteps(graph_, x, f); }

  // The node that makes the value, if it is that operator, of two inputs.
  const Node* makerOf(ValueId value, const char* op_type) const {
    const Node* node = producerIn(value);
    return node != nullptr && node->is(op_type) && node->inputs.size() == 2 ? node : nullptr;
  }

  // difference = f - x
  bool isStepLess(ValueId difference, ValueId x) const {
    const Node* node = makerOf(difference, "Sub");
    return node != nullptr && sourceOf(node->inputs[1]) == x && isStep(node->inputs[0], x);
  }
  // difference = x - f
  bool isDifferenceOf(ValueId x, ValueId difference) const {
    const Node* node = makerOf(difference, "Sub");
    return node != nullptr && sourceOf(node->inputs[0]) == x && isStep(node->inputs[1], x);
  }
  // sum = f + x
  bool isStepAddedTo(ValueId x, ValueId sum) const {
    const Node* node = makerOf(sum, "Add");
    if (node == nullptr) return false;
    return (sourceOf(node->inputs[1]) == x && isStep(node->inputs[0], x)) ||
           (sourceOf(node->inputs[0]) == x && isStep(node->inputs[1], x));
  }

  const Graph& graph_;
  UseDef uses_;
  std::vector<bool> trained_;
};

}  // namespace

std::string straightThroughs(const Graph& graph) {
  constexpr size_t kMostTold = 4;
  const Cancelling cancelling(graph);
  std::vector<std::string> found;
  for (const Node& node : graph.nodes) {
    if (const std::optional<ValueId> value = cancelling.cancelledIn(node))
      found.push_back(fmt::format("'{}' in {}", graph.value(*value).name, describeNode(node)));
  }
  if (found.empty()) return "";
  return fmt::format(
      "a straight-through estimator, x + (f(x) - x), x - x or x / x, without its detach(): {}: no gradient "
      "of "
      "the result reaches that value, so that what is before it may not be trained as in the module. Export "
      "the module with torch.onnx.export's default (dynamo=True, optimize=False), which shows detach()",
      listed(found, kMostTold));
}

}  // namespace pipeshard
