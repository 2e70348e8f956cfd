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
// prepareModel; the values that a term names have a type and a rank: onnx_import/loss/axis_names.h).
// Probabilities where the kind reads scores: Error(kUsage) (loss_forms.h). Every loss is a mean over
// elements; labels of -100 do not count, as in PyTorch.
//
// Class labels are the scores without the axis of the classes, which is the one that the term says; else for
// labels that the graph has the last one that fits; else, for a new input (int64), by the scores' rank:
//   [batch, classes]   [batch, tokens, classes]   [batch, classes, height, width]   [batch, classes, ...]
// `notes` gets a sentence where that is not the only way.
ValueId attachLoss(Graph& graph, const LossSpec& spec, std::vector<std::string>* notes = nullptr);

}  // namespace pipeshard
