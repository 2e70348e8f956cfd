// Exporters write some operators on a batch by counting its rows: y[arange(B), i] is a GatherND with the
// numbers 0, 1, 2, ... in its indices. The same is written here without them, so that every row is treated
// alike and the batch can be cut. Indices of a large batch are no constants; what they are made from is
// looked at, so that a large batch is written as a small one. Internal to onnx_import.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// Returns how many nodes were written otherwise:
//   GatherND(x, [row])               ->  x
//   GatherND(x, [row, i])            ->  GatherND(x, [i], batch_dims 1); Gather(x, i, axis 1) where i is the
//                                        same for all rows
//   GatherND(x, [i, row])            ->  GatherND(Transpose(x), [i], batch_dims 1): rows of another axis
//   Gather(Reshape(x, [-1]), 0..n)   ->  Reshape(x): every element, in order (as_strided of a whole tensor)
//   Gather(Reshape(x, [-1]), row * n + i)  ->  Gather(Reshape(x, [B, n]), i, axis 1): as_strided that reads
//                                        the same of every row, or an attention's mask (by Flatten, of the
//                                        TorchScript exporter); with an i of data GatherND(.., [i],
//                                        batch_dims 1)
//   ScatterND(x, [row, i], updates)  ->  ScatterElements(x, i, updates, axis 1), i the same for all rows
//   ScatterND(x, 0..B, updates)      ->  updates: every row, in order
//   Tile(x, [B, 1])                  ->  Expand, between two Reshapes where the axis is larger than 1
int writeWithoutRowNumbers(Graph& graph);

}  // namespace pipeshard
