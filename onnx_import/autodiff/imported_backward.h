// Models that were exported with their backward pass: beside the loss they have the gradients of their
// weights as outputs.
//
// Such a backward pass is not taken over but made anew from the loss, like that of any other model: so its
// operators belong to the layer of the forward operator that they differentiate, and a batch can be cut. What
// the file has serves as a check: `validate` computes its gradients as they were exported, on one device and
// the whole batch, and compares.
//
// A gradient is known by a mark (kGradientMark; onnx_import/forms finds gradients by the flow of data), or by
// its name: that of the weight with "grad" or "gradient" before or behind it, '.', '_', '/' and ':' alike.
//   outputs loss, grad_fc.weight, grad_fc.bias; weights fc.weight, fc.bias, scale:
//   two gradients; scale is not trained
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// The metadata key on an output that is a gradient: its value is the weight's name.
inline constexpr const char* kGradientMark = "pipeshard.gradient_of";

struct ImportedGradient {
  std::string parameter;
  std::string output;
};

struct ImportedBackward {
  // in the order of the outputs; none: the model has no backward pass
  std::vector<ImportedGradient> gradients;
  size_t operators = 0;  // that are left out with them
};

// The outputs of a graph as read that are gradients, by mark or name. `weights_are_inputs`: inputs of the
// graph may be weights, and have gradients; else an output that is called the gradient of an input is none.
// Error(kBadModel) when an output is called a gradient, and no weight or input is called like the rest of its
// name, or the shapes differ.
std::vector<ImportedGradient> namedGradients(const Graph& graph, bool weights_are_inputs = false);

// Removes the gradients (by mark or name) from a graph as read with all that only they need, and marks what
// is trained: weights with a gradient are, others are not (overrideParameters comes behind, and wins). Ids
// change. Errors as above.
ImportedBackward takeBackward(Graph& graph);

}  // namespace pipeshard
