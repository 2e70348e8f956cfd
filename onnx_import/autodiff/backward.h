// Reverse-mode differentiation of the forward nodes of a graph.
#pragma once

#include <vector>

#include "ir/graph/training_graph.h"
#include "onnx_import/autodiff/gradient_context.h"

namespace pipeshard {

// What differentiation found; ids of the graph that the builder works on.
struct Gradients {
  // in the order of `parameters`; each part an output of its own
  std::vector<std::vector<ValueId>> parameter_parts;
  std::vector<ValueId> activation_gradients;  // of values that depend on a graph input
};

// Appends backward nodes along the paths from `parameters` to `loss`. Contributions to a computed value are
// added by one Sum that belongs to the value's producer; contributions to a parameter stay apart. Names:
// "<value>_grad". Errors: kBadModel for an operator on a path that has no rule, or whose rule refuses.
Gradients appendBackward(BackwardBuilder& builder, ValueId loss, const std::vector<ValueId>& parameters,
                         ValueId loss_scale = {});

// By node index, for the backward nodes: kBackwardInput if an activation's gradient needs the node, else
// kBackwardWeight. All other entries are left alone. An input node never reads what a weight node gives.
void splitBackwardPhases(const Graph& graph, const std::vector<NodeId>& forward_nodes,
                         const std::vector<ValueId>& activation_gradients, std::vector<Phase>& phases);

}  // namespace pipeshard
