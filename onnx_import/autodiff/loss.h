// The nodes that compute the loss.
#pragma once

#include "ir/graph/graph.h"
#include "ir/plan/loss_spec.h"

namespace pipeshard {

// Whether an output may be a loss: a floating-point scalar, or an only one of unknown shape.
bool hasLossOutput(const Graph& graph);

// Adds the loss nodes if needed and returns the scalar loss; an invalid id for LossSpec::isNone. Ambiguous
// (several or no scalar outputs): Error(kUsage) that lists the candidates as ready-to-paste options. New
// inputs get symbols so that they are bound like the others (call it on the graph as read, before
// prepareModel) and logits' class axis: labels [batch, ...] int64 for logits [batch, classes] or [batch, ...,
// classes] (class axis last). Every loss is a mean over elements; labels of -100 do not count, as in PyTorch.
ValueId attachLoss(Graph& graph, const LossSpec& spec);

}  // namespace pipeshard
