// A function of arrays, element by element, given as a graph: what it computes, in float64. Internal to
// onnx_import/forms, which asks what the update of an optimizer does.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/plan/optimizer.h"

namespace pipeshard {

class ElementFunction {
 public:
  // `graph`: inputs and outputs of floating-point or integer types; operators that work element by element.
  // Constants of `shape` must hold one number everywhere: elements are told apart by the inputs alone.
  ElementFunction(Graph graph, const Shape& shape);

  // Inputs and outputs in the graph's order: arrays of one length, or single numbers. nullopt: an operator
  // that the evaluator does not compute, or shapes that do not fit.
  using Arrays = std::vector<std::vector<double>>;
  std::optional<Arrays> evaluate(const Arrays& inputs) const;

 private:
  Graph graph_;
};

// pipeshard's update of one parameter (ir/plan/optimizer.h, docs/operators.md) as such a function:
// inputs Param, Grad, the states, Step (1 in the first step; only Adam and AdamW); outputs the new Param and
// states.
ElementFunction::Arrays evaluateUpdate(const OptimizerSpec& spec, const ElementFunction::Arrays& inputs);

}  // namespace pipeshard
