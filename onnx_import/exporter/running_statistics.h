// Running statistics that an exporter's optimizer has merged with parameters of equal numbers.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// Gives every batch normalisation the running statistics that its call mentions (ir/graph/exporter_marks.h).
// Fresh ones hold the numbers of its bias and scale, so that the file may have one tensor for both, which
// would be trained as the one and used as the other:
//   BatchNormalization(x, bn.weight, bn.bias, bn.bias, bn.weight)
//   BatchNormalization(x, bn.weight, bn.bias, bn.running_mean, bn.running_var)
// A module that is called twice keeps one pair. To be called on the graph as read. Returns how many tensors
// were made. Internal to onnx_import.
int separateStatistics(Graph& graph);

}  // namespace pipeshard
