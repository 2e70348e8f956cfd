// The order of nodes where a graph leaves a choice: parallel branches one behind the other instead of
// interleaved, as a tracer happened to meet them, so that few bytes cross the places where stages may be cut.
// Cuts are made in graph order, so this comes before them.
//
// Minimised is the sum, over the places behind each node, of the bytes that cross there. Nodes that all
// others lie before or behind (the residual additions of a transformer) split the graph into parts that are
// ordered apart without loss. A part is searched over its sets of done nodes, level by level: exactly, or,
// where there are more than limits allow (a fixed number, never the clock), keeping the best sets of each
// level and those of the given order. Of equally good orders the one nearest to the given order wins, and a
// part keeps its given order unless another saves a tenth. Nodes that only weights lead to (transposed
// weights) go right before their first reader and count at it. Calls of one batch normalisation in training
// mode stay in the given order, in which they update its running statistics.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

struct OrderProblem {
  struct Value {
    int maker = 0;             // a node, or -1: made where it is first read
    std::vector<int> readers;  // nodes, ascending, without repetitions
    int64_t bytes = 0;
  };
  int nodes = 0;  // numbered in the given (topological) order
  std::vector<Value> values;
};

// A topological order at most as dear as the given one. `least_saving`: of a part, in hundredths.
std::vector<int> orderForCuts(const OrderProblem& problem, int least_saving = 10);

// The same for a prepared graph: positions in graph.nodes. The given order for graphs with subgraphs in
// attributes, whose reads are hidden.
std::vector<size_t> nodeOrderForCuts(const Graph& graph);

// Puts the nodes into that order. What the graph computes stays the same.
void reorderNodes(Graph& graph, const std::vector<size_t>& order);

}  // namespace pipeshard
