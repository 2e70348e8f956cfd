// What the CPU's kernels do with memory, as far as memory that is foreseen depends on it: by columns of the
// table of operators. Kernels decide (runtime/kernels/base/kernel.h): tests compare the two.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/graph.h"
#include "sharding/stage/stage_price.h"

namespace pipeshard {

// Buffers begin at multiples of 64 bytes (runtime/execute/memory_plan.h).
inline int64_t placedBytes(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// A sum over microbatches may be added up where it lies (Kernel::mayAccumulate): one product of matrices
// without a bias, and what a lookup's gradient scatters. Not: products of many matrices, convolutions, sums.
bool addsToResult(const Graph& graph, const Node& node);

// The output may lie where this input does (Kernel::mayRunInPlace), if both have as many bytes. Only what
// layers are made of: said of too few operators, too much memory is foreseen.
bool overwritesInput(const Node& node, size_t input);

// About what a kernel of one thread needs besides (Kernel::workspaceBytes): convolutions pack weights and one
// row of the others; for a gradient of weights, the image and, of some features at a time, the others.
// `inputs`, `output`: bytes; `rows`, `features`: the first two sizes of the first input, `features` of a
// device.
int64_t kernelWorkspace(const Node& node, const std::vector<int64_t>& inputs, int64_t output, int64_t rows,
                        int64_t features);

// The most that the steps of a resharding from `before` on hold beside its first and last tensor, on the
// device with the largest shards: tensors between steps, and what collectives pack. `element`: bytes.
int64_t reshardingWorkspace(ShardingSpec before, const std::vector<ReshardingStep>& steps, const Shape& shape,
                            int64_t element, const LogicalMesh& mesh);

}  // namespace pipeshard
