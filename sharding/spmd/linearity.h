// Which operators let sums pass, f(sum of parts) == sum of f(parts): along mesh axes (linearInputs), and over
// microbatches (passesSums). Both read the table of operators (ir/operators/operator_facts.h); what depends
// on types and attributes is here.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Sets of input positions: when exactly these are partial sums (and the others whole), the outputs are the
// sums' results. Add: {{0,1}}; Mul of two different values: {{0},{1}}; Transpose: {{0}}; Relu: {}.
std::vector<std::vector<int>> linearInputs(const Graph& graph, const Node& node);

// `sums[i]`: input i is a partial sum; every other present input is the same in all microbatches. True when
// the outputs are then partial sums of the whole's outputs. Add of a sum and an unchanging value is not: the
// value would be counted once per microbatch.
bool passesSums(const Graph& graph, const Node& node, const std::vector<bool>& sums);

// The input positions of an operator that adds or selects (Add, Sub, Sum, Mean, Concat, Where): it passes
// sums when all of these are sums. Empty for other operators.
std::vector<int> additiveInputs(const Node& node);

}  // namespace pipeshard
