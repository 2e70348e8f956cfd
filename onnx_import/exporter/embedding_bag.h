// Bags of embeddings: nn.EmbeddingBag, torch.nn.functional.embedding_bag.
//
// PyTorch's exporter writes a call as a loop over the bags that collects their results in a sequence. Where
// all bags have the same size, as those of a 2-D input have, no loop is needed, and rows of the batch stay
// apart:
//   x [B,n] → Reshape [B*n] → Gather → Loop over Range(0, B*n, n) → ConcatFromSequence [B,E]
//   x [B,n] → Gather [B,n,E] → ReduceSum, ReduceMean or ReduceMax over axis 1 [B,E]
// Internal to onnx_import, but for planning, which calls it on the graph as read.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// Returns how many calls were written otherwise. Finds them by the exporter's marks
// (ir/graph/exporter_marks.h), so it is to be called on the graph as read, before restoreParameters: a loop
// that reads a table by name would keep that one from being restored. Tables keep their names, and new nodes
// the marks of their call. Error(kBadModel) for a call whose bags differ in size, or whose sizes are not
// known before the data are.
int takeEmbeddingBags(Graph& graph);

}  // namespace pipeshard
