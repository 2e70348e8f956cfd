// Calls of the module that the file computes otherwise, as the exporter's marks tell.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Error(kBadModel) with the node, what the module computes, what the file does, and the way out, for
//   - scatter_reduce with the mean, which the exporter writes as the last one of those with one index;
//   - where it `trains`: embedding with scale_grad_by_freq, which divides gradients by how often an index is
//     there, and of which a file has nothing.
// To be called on the graph as read.
void refuseMistakenCalls(const Graph& graph, bool trains);

// Buffers that the module's forward pass changes and the file does not, but for the running statistics of
// batch normalisations: codebooks with moving averages, counters, the vectors of a spectral norm.
std::vector<std::string> changedBuffers(const Graph& graph);

}  // namespace pipeshard
