// Which operators add to what their result's buffer holds: then what a microbatch adds to a sum over microbatches needs no memory of its
// own. A statement about the CPU kernels (runtime/kernels/kernel.h, mayAccumulate), which memory is priced by; a test compares the two.
#pragma once

#include "ir/graph.h"

namespace pipeshard {

// One product of matrices without a bias, and what a lookup's gradient scatters. Not: products of many matrices, convolutions, sums.
bool addsToResult(const Graph& graph, const Node& node);

// Names for their input: the result is where the input is.
bool isView(const Node& node);

}  // namespace pipeshard
