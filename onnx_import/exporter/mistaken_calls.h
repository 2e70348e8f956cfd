// Calls of the module that the file computes otherwise, as the exporter's marks tell.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Error(kBadModel) with the node, what the module computes, what the file does, and the way out, for
//   - pairwise_distance and cdist of the TorchScript exporter, without the absolute value, where p is not
//   even;
//   - scatter_reduce with the mean, which the exporter writes as the last one of those with one index;
//   - where it `trains`: embedding with scale_grad_by_freq, which divides gradients by how often an index is
//     there, and of which a file has nothing.
// To be called on the graph as read.
void refuseMistakenCalls(const Graph& graph, bool trains);

// A query that a mask hides all keys from gets 0 of scaled_dot_product_attention, and no gradient comes of
// it. The exporter hides with the lowest number, for which such a row is even, and the zeros that it puts in
// for NaN are never needed. Writes minus infinity for that number, where it is chosen by a mask in the file
// and those zeros are there. Returns how many attentions there were. No other row changes.
int hideWholeRows(Graph& graph);

// Buffers that the module's forward pass changes and the file does not, but for the running statistics of
// batch normalisations: codebooks with moving averages, counters, the vectors of a spectral norm.
std::vector<std::string> changedBuffers(const Graph& graph);

}  // namespace pipeshard
