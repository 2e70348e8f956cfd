// Operators of other domains that nothing here knows to compute, such as the classifiers of ai.onnx.ml.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// Of a domain that is neither ONNX's nor pipeshard's, no function of the model, without a lowering
// or a kernel.
bool isUnknownOperator(const Graph& graph, const Node& node);

}  // namespace pipeshard
