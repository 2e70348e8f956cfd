// Which operators let a sum over microbatches pass: f(sum of parts) == sum of f(parts). The table is that of
// linearInputs (strategy.h).
#pragma once

#include <cstddef>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// `sums[i]`: input i is a partial sum; every other present input is the same in all microbatches. True when
// the outputs are then partial sums of the whole's outputs. Add of a sum and an unchanging value is not: the
// value would be counted once per microbatch.
bool passesSums(const Graph& graph, const Node& node, const std::vector<bool>& sums);

// The input positions of an operator that adds or selects (Add, Sub, Sum, Mean, Concat, Where): it passes
// sums when all of these are sums. Empty for other operators.
std::vector<size_t> additiveInputs(const Node& node);

}  // namespace pipeshard
