// A group of elementwise nodes as one kernel of the CPU. The elements are cut into tiles; a thread takes one
// tile through all nodes, each by the kernel that the node has anyway, made for a tile's shape. What only the
// group reads lies in a few tiles of workspace per thread, which stay in its cache.
//
// The bits are those of the nodes one by one: an element sees the same operations in the same order.
//
// A tile is a block of one axis of the group's shape, with all behind it: of [8,64,56,56] two channels of one
// image, [2,56,56]. An operand that is repeated, [64,1,1], is [2,1,1] there.
#pragma once

#include <memory>
#include <span>

#include "runtime/kernels/base/kernel.h"
#include "runtime/kernels/fusion/fused_groups.h"

namespace pipeshard::kernels {

// Its inputs and outputs are the group's. Needs workspace for as many threads as there are now. `roots`:
// memoryRoots of the graph.
std::unique_ptr<Kernel> makeFusedKernel(const Graph& graph, const FusedGroup& group,
                                        std::span<const ValueId> roots, const KernelRegistry& kernels);

}  // namespace pipeshard::kernels
