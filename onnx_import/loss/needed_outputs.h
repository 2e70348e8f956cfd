// Outputs of a model that stand in the way of its loss.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Takes outputs that need an unknown operator (onnx_import/lowering/unknown_operators.h) out of
// `graph.outputs`, but for `needed`, and says of each "label (ai.onnx.ml::ArrayFeatureExtractor)". What made
// them stays until dead code is removed.
std::vector<std::string> leaveOutUnknownOutputs(Graph& graph, ValueId needed);

}  // namespace pipeshard
