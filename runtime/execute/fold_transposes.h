// Products read transposed matrices where they lie, so that a subgraph makes no transposed copies.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard {

// Of a graph whose shapes are known: a Transpose of the last two axes that feeds a Gemm or a MatMul becomes a
// flag of the product (transA, transB; a MatMul becomes com.microsoft::FusedMatMul, where `kernels` has
// that). Removes the Transposes that then nobody reads. Returns how many operands were folded.
int foldTransposes(Graph& graph, const KernelRegistry& kernels);

}  // namespace pipeshard
