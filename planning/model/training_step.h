// The training step of a model, at the sizes that parts of a batch have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/plan/optimizer.h"
#include "planning/model/forward_model.h"
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

// What cannot be trained is refused before anything is searched: a search may take a minute. `frozen`,
// `trained`: as for refuseLostParameters. Also what a look at the model has kept (ForwardModel::refusal).
// Error(kBadModel).
void refuseUntrainable(const ForwardModel& model, const std::vector<std::string>& frozen,
                       const std::vector<std::string>& trained = {});

// Of a model with a batch of symbolic size: whether its loss can be cut along the batch at all, whatever the
// batch that was decided. BatchCutError where examples meet.
void requireCuttableRows(const ForwardModel& model);

// How a plan takes the batch.
BatchCut batchCutOf(const Plan& plan, const ForwardModel& model);

// Rows of a microbatch are shared out over the devices of some stage.
bool hasDataParallelStage(const Plan& plan);

// A sharded stage may cut the batch where a loss is a sum over it. Nothing is lost where it is not: the loss
// is computed whole; a note says so.
bool canSumOverBatch(const ForwardModel& model, const OptimizerSpec& optimizer, Plan& plan);

}  // namespace pipeshard
