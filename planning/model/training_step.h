// The training step of a model, at the sizes that parts of a batch have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/plan/optimizer.h"
#include "planning/model/forward_model.h"
#include "sharding/batch/time_axis.h"
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

// Of a file whose batch has a fixed size: where examples of one batch meet, as for a batch of symbolic size
// (BatchCutError::cause). The loss of more examples is then not the mean of the losses of batches. What this
// one size does not tell (rows merged behind another axis, a batch of one example) is not isMeeting();
// nothing: they do not meet. `outputs`: what is wanted beside the loss.
std::optional<BatchCutError> examplesMeet(const ForwardModel& model, const std::vector<std::string>& outputs);

// Of such a file, where no examples of a batch meet: what there is to say where the loss of several batches,
// the mean of theirs, may be another than that of all their examples all the same, since it is a quotient of
// sums over the batch (of labels that count), or a plain sum, as far as constants tell. "": nothing.
std::string sumsOverBatch(const ForwardModel& model);

// How a plan takes the batch.
BatchCut batchCutOf(const Plan& plan, const ForwardModel& model);

// Rows of a microbatch are shared out over the devices of some stage.
bool hasDataParallelStage(const Plan& plan);

// A sharded stage may cut the batch where a loss is a sum over it. Nothing is lost where it is not: the loss
// is computed whole; a note says so.
bool canSumOverBatch(const ForwardModel& model, const OptimizerSpec& optimizer, Plan& plan);

}  // namespace pipeshard
