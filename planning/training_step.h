// The training step of a model, at the sizes that parts of a batch have.
#pragma once

#include <cstdint>

#include "onnx_import/autodiff/training.h"
#include "planning/planning.h"
#include "sharding/batch/training_family.h"

namespace pipeshard {

// How a batch is taken.
struct BatchCut {
  int64_t rows = 1;
  int64_t microbatches = 1;
  bool cut = false;  // into parts at all, be it over microbatches or over devices
};

// The training step of a batch, at any number of rows of it. Model and optimizer are kept by reference.
TrainingFamily trainingFamily(const ForwardModel& model, const OptimizerSpec& optimizer,
                              const BatchCut& batch);

// What was asked for when a plan was made, as far as the training graph depends on it; and how it takes the
// batch.
PlanRequest requestOf(const Plan& plan);
BatchCut batchCutOf(const Plan& plan, const ForwardModel& model, const OptimizerSpec& optimizer);

// A sharded stage may cut the batch where a loss is a sum over it. Nothing is lost where it is not: the loss
// is computed whole; a note says so.
bool canSumOverBatch(const ForwardModel& model, const OptimizerSpec& optimizer, Plan& plan);

}  // namespace pipeshard
