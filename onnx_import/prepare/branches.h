// If whose condition depends on data: both branches are computed, and one is chosen. Internal to onnx_import.
#pragma once

#include <functional>
#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

// Puts both branches of every If for which `supported` is false in its place, and chooses each output:
//   y = If(c) {then: a = Relu(x); else: b = Neg(x)}      ->      a = Relu(x);  b = Neg(x);  y = Where(c, a,
//   b)
// The outputs of both branches need the same type and static shape. While these are not known, the branches
// move out, so that what folds and loops in them is found, and an If stays that names their results. Decided
// conditions are for simplify(). Returns how many nodes changed.
//
// What is not the same as with one branch:
//   - Gradients. The branch that was not chosen gets zeros, and multiplies them by its own derivatives: where
//     one of those is infinite or NaN (Sqrt at 0, Log of a negative number), so is the gradient, though the
//     loss is not. A model that guards such an operator by an If must guard its argument instead.
//   - Errors. An operator that cannot run on what it gets, as a Gather with an index out of range, fails in
//   the
//     branch that was not chosen, too.
//   - Parameters that only the other branch reads have the gradient zero, where PyTorch has none: momentum
//     and weight decay move them still.
int chooseBranches(Graph& graph, const std::function<bool(const Node&)>& supported);

// For a message: why an If that is still there is not taken apart, and what to do. "" for other nodes.
std::string branchObstacle(const Graph& graph, const Node& node);

}  // namespace pipeshard
