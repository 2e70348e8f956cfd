// Outputs of a model that stand in the way of its loss, or of its other outputs.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Takes outputs that need an unknown operator (onnx_import/lowering/unknown_operators.h) out of
// `graph.outputs`, but for `needed` (the loss; invalid: there is none), and says of each
// "label (ai.onnx.ml::ArrayFeatureExtractor)". What made them stays until dead code is removed. If no output
// is left: Error(kBadModel) that names them.
std::vector<std::string> leaveOutUnknownOutputs(Graph& graph, ValueId needed);

}  // namespace pipeshard
