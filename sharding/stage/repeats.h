// Structure of nodes, and sequences of nodes that repeat themselves: how equal blocks of a model are
// recognised, whatever their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Nodes of one graph have equal keys if everything that rules, strategies and costs depend on is equal:
// operator, attributes, types, shapes, small constants, which inputs are the same.
std::string structuralKey(const Graph& graph, const Node& node);

// By position a number; equal for nodes of equal keys, counted up from 0 in order of first appearance.
std::vector<int> structuralNumbers(const Graph& graph, const std::vector<NodeId>& nodes);

// Positions [begin, begin + extent) of a sequence, each equal to the one `period` further as long as that is
// inside: `repeats` whole periods, wherever in the first extent - repeats * period + 1 positions they begin.
struct RepeatedRun {
  size_t begin = 0;
  size_t period = 0;
  size_t repeats = 0;  // at least 2; 0: nothing repeats
  size_t extent = 0;
};

// The run whose whole periods have the largest sum of weights, which is positive; of equal ones that of the
// shortest period, then the first. Weights belong to keys: equal keys have equal weights. O(keys^2).
//   heaviestRun({9, 1, 2, 1, 2, 1}, {1, 1, 1, 1, 1, 1}, 2) == {begin 1, period 2, repeats 2, extent 5}
RepeatedRun heaviestRun(const std::vector<int>& keys, const std::vector<int64_t>& weights,
                        size_t least_period);

}  // namespace pipeshard
