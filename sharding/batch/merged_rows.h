// Rows of a batch that lie inside a merged axis. A module that takes [L, N, E] (nn.MultiheadAttention,
// nn.Transformer) merges it to [L*N, E] for a product, so that the rows of one example are N apart, and a
// part of the batch is no block of the axis. As long as nothing but the same row meets, their order does not
// matter: the axis is merged as [N*L, E] instead.
//
//   Reshape [L,N,E]->[L*N,E], Gemm, Reshape [L*N,F]->[L,N,F]
//   becomes
//   Transpose [L,N,E]->[N,L,E], Reshape ->[N*L,E], Gemm, Reshape ->[N,L,F], Transpose ->[L,N,F]
#pragma once

#include <cstdint>

#include "ir/graph/graph.h"

namespace pipeshard {

// Whether a Reshape may merge rows of the batch behind another axis: cheap, and true too often.
bool mayMergeRows(const Graph& graph, int64_t rows);

// Rewrites the prepared graph of a batch of `rows`. `other`: the same model prepared for another number of
// rows (more than one), by which the axes of the batch are found. A single row is where it is in any order;
// its graph is changed as that of more rows, since a plan's graphs have the same nodes at every size. Returns
// how many Reshapes were turned; 0, and nothing changes, where some operator needs the rows in their order.
int mergeRowsFirst(Graph& graph, int64_t rows, const Graph& other, int64_t other_rows);

}  // namespace pipeshard
