// Running statistics that a file does not have as such: merged with parameters of equal numbers, or those of
// a batch normalisation that is written in pieces.
#pragma once

#include <map>
#include <string>

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

// Finds batch normalisations in inference mode that a converter has written in pieces, without marks:
//   scale = gamma / sqrt(variance + epsilon);  y = (x - mean) * scale + beta
//                                              y = x * scale + (beta - mean * scale)
// A weight that is read for such a root alone is a variance; what is subtracted before its scale, or is
// multiplied by it and then added, is a mean. They become buffers, as in a file with marks. (A variance that
// is computed of x, as that of a layer normalisation, is no weight.) To be called on the graph as read.
// Returns a sentence that names them; "" where there are none.
std::string takeWrittenStatistics(Graph& graph);

// By running mean, how many batch normalisations of the main graph read it, at once, through views or as
// another one has updated it: how often a forward pass calls the module. Where the file tells which were in
// training mode, those alone.
std::map<ValueId, int> callsByMean(const Graph& graph);

}  // namespace pipeshard
