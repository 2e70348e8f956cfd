// Gradients among the outputs of a file that has forward and backward pass in one graph.
//
// By their names (onnx_import/autodiff/imported_backward.h), if any output is called a gradient; else by the
// flow of data. An output is taken for a gradient if it has type and shape of a trained weight, follows from
// the batch, the loss does not depend on what makes it, and it is not the new value of a weight, statistic or
// state. Which gradient belongs to which weight: gradient_pairing.h.
//
//   outputs output_0 [], output_1 [8,6], output_2 [8]; weights fc.weight [8,6], fc.bias [8]
//   output_1 is the gradient of fc.weight, output_2 that of fc.bias; output_0 is the loss
//
// Weights are initializers or, where none of these is trained, inputs (primals_1, ...).
#pragma once

#include <string>
#include <vector>

#include "onnx_import/autodiff/imported_backward.h"
#include "onnx_import/forms/step_graph.h"

namespace pipeshard {

struct JointGradients {
  std::vector<ImportedGradient> gradients;  // in the order of the outputs; none: no backward pass was found
  std::vector<std::string> weight_inputs;   // of them, those that are inputs of the graph
  std::vector<std::string> others;          // outputs that are neither the loss nor gradients
  bool by_name = false;
};

// Error(kBadModel) that lists outputs and weights when outputs are gradients, but of which weights cannot be
// said; or for names that contradict (takeBackward).
JointGradients findGradients(const StepGraph& step);

// Writes on the outputs what they are gradients of (kGradientMark): takeBackward reads it.
void markGradients(Graph& graph, const std::vector<ImportedGradient>& gradients);

}  // namespace pipeshard
