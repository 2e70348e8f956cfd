// Finds operators of a subgraph that one pass over the memory can do (chain_kernel.h): element by element, or
// row by row (softmax, normalisations), one reading what another makes.
//
//   a = MatMul(..)  b = Mul(a, g)  c = Add(b, x)  d = LayerNormalization(c, s, t)  e = MatMul(d, w)
//   ->  a = MatMul(..)  c, d = Chain(a, g, x, s, t)  e = MatMul(d, w)      b is nowhere, c is read by others
//
// A group is run in the place of its last operator. So it ends before anybody else reads what it makes. It
// keeps at least one tensor out of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "ir/graph/graph.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard::kernels {

inline constexpr const char* kChain = "Chain";
inline constexpr size_t kMostChainOperands = 16;  // inputs, or outputs, of one operator

// Of a graph as it is run (static shapes, kernels for all but views), on the CPU. `kernels`: which operators
// have one. Returns how many groups were made. Nothing where the environment has PIPESHARD_CHAINS=off.
int groupChains(Graph& graph, const KernelRegistry& kernels);

bool isChain(const Node& node);
// Of a chain: its operators, inputs and outputs in the node's order; as how many rows they are seen.
std::shared_ptr<const Graph> chainBody(const Node& node);
int64_t chainRows(const Node& node);

}  // namespace pipeshard::kernels
