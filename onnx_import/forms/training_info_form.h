// Models with a TrainingInfoProto: the forward pass with its loss, and what the algorithm does with the
// gradients. Internal to onnx_import/forms.
//
//   algorithm: labels, scores -> loss; Gradient(w; y=loss) -> g; v' = 0.9 v + g; w' = w - 0.1 v'
//   the loss is `loss`, w is trained, by sgd:lr=0.1,momentum=0.9
//
// What is taken of a model and its TrainingInfoProtos, combined (combined_step.h):
//   * the loss is what Gradient operators differentiate; weights that update_binding sets and that have a
//     gradient are trained, others are not;
//   * what update_binding sets them to is compared with our optimizers, by numbers (imported_optimizer.h), as
//     a function of that very gradient: one that is clipped or scaled by a norm is none of ours;
//   * an algorithm without Gradient has a backward pass of its own, which becomes outputs (a joint graph);
//   * states and counters have to start as ours do: at 0, the count as the update needs it;
//   * running statistics of batch normalisations are kept by our step as well.
// The content that `initialization` would give to weights is not taken: training starts from that of the
// file.
#pragma once

#include "onnx_import/forms/model_form.h"

namespace pipeshard {

// Reduces the graph if it has TrainingInfoProtos with an algorithm, and takes them out of it. False: it has
// none; `reduced` may have a note. Error(kBadModel) for what combineStep refuses, for an algorithm without a
// loss, and, unless an optimizer is given, for updates that are not ours, naming the weight.
bool reduceTrainingInfo(Graph& graph, const ReduceOptions& options, ReducedForm& reduced);

}  // namespace pipeshard
