// What an exporter has dropped of a call without a word, where its marks still tell
// (ir/graph/exporter_marks.h).
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// A sentence per kind of trap, with the option or the export that helps:
//
//   - A batch normalisation of a module in training mode is in inference mode: it uses and keeps the running
//     statistics of the file.
//   - The dropout inside an attention is in inference mode, or gone; any other is in inference mode.
//   - The divisor_override of an average pooling is gone.
//   - Equal values are merged, of which the module may detach one.
//   - A line of code has a backward pass of its own: a function's apply(), a hook.
//   - ONNX Runtime's optimizer has written the file: without the exporter's marks, with equal weights merged.
//
// To be called on the graph as read.
std::vector<std::string> exporterTraps(const Graph& graph);

// Whether ONNX Runtime's optimizer has written the graph: every file that a session saves imports a domain of
// its own. To be called on the graph as read.
bool isOfRuntimeOptimizer(const Graph& graph);

// Error(kBadModel) for a graph as read whose only quantisation is QuantizeLinear and DequantizeLinear of
// numbers that are computed, or of weights in floating point: a module's fake quantisation. Its
// straight-through gradient is not in the file, and rounding has none. Where the user has said what is
// trained
// (`train`, not empty) that counts.
void refuseFakeQuantized(const Graph& graph, const std::vector<std::string>& train);

// Names of inputs whose content nothing reads; their shapes may be read. An example call that passes one
// tensor twice makes the exporter read one of the two for both. Empty for graphs with subgraphs in
// attributes, whose reads are hidden.
std::vector<std::string> unreadInputs(const Graph& graph);

}  // namespace pipeshard
