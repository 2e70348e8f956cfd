// Which nodes of a subgraph run as one. Elementwise nodes that read each other's results are run tile by
// tile: what one gives to the next stays in the cache, and needs no memory of its own.
//
//   h = Add(x, bias); y = Relu(h); z = Mul(y, y), where nobody else reads h and y:
//   one group {Add, Relu, Mul} with inputs x and bias and one output z. h and y are never in memory.
//
// A group is run where its last node is. So it ends where somebody else reads what it has made so far, and
// where a node that makes much comes between (its inputs would be kept longer). Every node has as many
// elements, in the same order; operands that are broadcast (a bias, a scalar) come from outside.
#pragma once

#include <span>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard::kernels {

// Its type is known, and every size.
bool hasStaticShape(const Value& value);

// Whose bytes each value names, by value: itself, or the first input of the view that makes it.
std::vector<ValueId> memoryRoots(const Graph& graph);

// The node's output is another name for its first input's bytes.
bool isNameOnly(const Graph& graph, const Node& node);

struct FusedGroup {
  std::vector<size_t> nodes;     // positions in the graph, ascending; at least two
  Shape shape;                   // of what every node makes, as the broadcast operands see it
  std::vector<ValueId> inputs;   // roots from outside, each once
  std::vector<ValueId> outputs;  // roots that are read outside, or outputs of the graph
};

// Groups share no node. All shapes of the graph are static. `roots`: memoryRoots of it.
std::vector<FusedGroup> findFusedGroups(const Graph& graph, std::span<const ValueId> roots);

}  // namespace pipeshard::kernels
