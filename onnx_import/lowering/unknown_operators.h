// Operators of other domains that nothing here knows to compute, such as the classifiers of ai.onnx.ml.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Of a domain that is neither ONNX's nor pipeshard's, no function of the model, without a lowering
// or a kernel.
bool isUnknownOperator(const Graph& graph, const Node& node);

// Takes outputs that need such an operator out of `graph.outputs`, but for `needed`, and says of each
// "label (ai.onnx.ml::ArrayFeatureExtractor)". What made them stays until dead code is removed.
std::vector<std::string> leaveOutUnknownOutputs(Graph& graph, ValueId needed);

}  // namespace pipeshard
