// What the CPU's kernels do with memory, as far as memory that is foreseen depends on it: by columns of the
// table of operators. Kernels decide (runtime/kernels/base/kernel.h): tests compare the two.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// A sum over microbatches may be added up where it lies (Kernel::mayAccumulate): one product of matrices
// without a bias, and what a lookup's gradient scatters. Not: products of many matrices, convolutions, sums.
bool addsToResult(const Graph& graph, const Node& node);

// The output may lie where this input does (Kernel::mayRunInPlace), if both have as many bytes. Only what
// layers are made of: said of too few operators, too much memory is foreseen.
bool overwritesInput(const Node& node, size_t input);

// About what a kernel needs besides (Kernel::workspaceBytes): convolutions pack weights, and one row of the
// others or, for a gradient of weights, all rows. `inputs`, `output`: bytes; `rows`: of the batch.
int64_t kernelWorkspace(const Node& node, const std::vector<int64_t>& inputs, int64_t output, int64_t rows);

}  // namespace pipeshard
