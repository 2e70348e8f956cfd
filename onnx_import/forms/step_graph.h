// What the recognition of forms looks at: a copy of a graph as read, with functions inlined, constants folded
// and types found as far as they follow, and what flows into what in it. Internal to onnx_import/forms.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

class StepGraph {
 public:
  // `loss`: the output that is the loss; "" finds it: the scalar floating-point output called "loss" or the
  // like, else the first one.
  explicit StepGraph(Graph as_read, const std::string& loss = "");

  const Graph& graph() const { return graph_; }
  const Value& value(ValueId id) const { return graph_.value(id); }
  // Invalid: no output is a scalar of a floating-point type.
  ValueId loss() const { return loss_; }

  // The loss depends on the content of the value: it is part of the forward pass.
  bool feedsLoss(ValueId id) const { return feeds_loss_[id.index()]; }
  // On some output of the node: gradients of several inputs may leave out the first.
  bool feedsLoss(const Node& node) const;
  // By value: the content follows from inputs that the loss depends on, but for those that are `weights`.
  std::vector<bool> fromBatch(const std::vector<ValueId>& weights = {}) const;
  // By value: the content follows from what a step is given: inputs, weights, states; not from constants and
  // numbers of the file alone.
  std::vector<bool> fromGiven() const;
  // By value: what the contents of these depend on, themselves included.
  std::vector<bool> upstream(const std::vector<ValueId>& values) const;

  // An input or initializer.
  bool isLeaf(ValueId id) const { return !uses_.producer[id.index()].valid(); }
  // An input, or an initializer of the file that is no number.
  bool isGiven(ValueId id) const;
  // The place of its node in the order of nodes; 0 for a leaf, which comes before all.
  size_t position(ValueId id) const { return isLeaf(id) ? 0 : uses_.producer[id.index()].index() + 1; }
  // The node that makes the value; null for a leaf.
  const Node* producer(ValueId id) const;
  std::vector<const Node*> consumers(ValueId id) const;
  // What the value shows: the same elements, one or two nodes before (Identity, Cast, Reshape, Transpose,
  // ...).
  ValueId origin(ValueId id) const;
  // The same in the other direction: the value and all that only show it.
  std::vector<ValueId> shownAs(ValueId id) const;
  // The number that a value of one element is, if it is a constant or shows one.
  std::optional<double> number(ValueId id) const;

  // Floating-point, of one known static shape.
  bool isTensor(ValueId id) const;
  bool sameType(ValueId a, ValueId b) const;  // of tensors: element type and shape
  bool isOneElement(ValueId id) const;

  // Floating-point initializers that are taken for trained, and that the loss depends on, in the module's
  // order (where the file says it, else as the file lists them).
  std::vector<ValueId> trainedInitializers() const;
  // Floating-point inputs of static shape that the loss depends on.
  std::vector<ValueId> tensorInputs() const;

  // The parameter or state that the value is the new one of: its last operation adds something to a leaf of
  // its own type and shape, or takes something away from it, or it is such a leaf unchanged.
  //   w - lr * g,   w * (1 - lr * decay) - step,   0.9 * running_mean + 0.1 * mean
  // A leaf times a small constant is none: that is the gradient of a penalty on large weights.
  ValueId updatedLeaf(ValueId id) const;

 private:
  ValueId leafOf(ValueId operand, ValueId like) const;
  ValueId findLoss(const std::string& name) const;
  // By value: these, and what follows from the content of one of them.
  std::vector<bool> spread(std::vector<bool> values) const;

  Graph graph_;
  UseDef uses_;
  ValueId loss_;
  std::vector<bool> feeds_loss_;
  std::vector<ValueId> trained_;
};

// Whether the node reads the content of its input `position`, and not only type or shape.
bool readsContent(const Node& node, size_t position);

// "'w' float32[3,4]"
std::string describeValue(const Value& value);

}  // namespace pipeshard
