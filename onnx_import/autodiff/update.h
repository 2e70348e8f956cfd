// The update phase: one optimizer function per parameter.
#pragma once

#include "ir/graph/training_graph.h"
#include "ir/plan/optimizer.h"
#include "onnx_import/autodiff/gradient_context.h"

namespace pipeshard {

// For every parameter that a gradient reaches: the graph inputs "<parameter>.gradient" and
// "<parameter>.<state>", a node, and its outputs "<parameter>.updated" and "<parameter>.<state>.updated"; and
// `step`, if the optimizer counts. Fills in the parameters' roles. Scalar hyperparameters are shared
// constants of the parameter's type.
void appendUpdates(BackwardBuilder& builder, const OptimizerSpec& optimizer, TrainingGraph& training);

}  // namespace pipeshard
