// The programs of a training step, from its plan.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/plan/optimizer.h"
#include "planning/model/training_step.h"
#include "planning/programs/planned_training.h"
#include "runtime/data/data_description.h"

namespace pipeshard {

inline constexpr const char* kWithoutLastBatch =
    "leave it out (plan without --last-batch and --data; `run` and `validate` leave out the rest of a file "
    "with --drop-last)";

// Why no plan like this one has programs for the shorter batch that ends an epoch, as a clause; "": it may.
std::string whyWholeBatchesOnly(const Plan& plan);

// For errors about data that do not fill a step (EpochEnd::parts).
StepMakeup stepMakeup(const Plan& plan);

// What emission cannot know: the ranges of integer inputs, and the types in the weights' files.
void completePrograms(const ForwardModel& model, EmittedPrograms& programs);

// A plan's shardings (sharding/stage/sharding_plan.h) are read by names that factors may not have in the
// family, since either has microbatches of one row. `plan`: with the microbatches of the model's batch.
bool mayRenameFactors(const ForwardModel& model, const Plan& plan, const TrainingFamily& family);
// By the names that they have in `other`. `planned`: of the largest microbatch, which the plan was made for.
void renameFactors(const Graph& planned, const Graph& other, Plan& plan);

// The programs of all ranks, and of one device alone. `progress`: as emitProgramSet.
StepPrograms emitStep(const ForwardModel& model, const OptimizerSpec& optimizer, const BatchCut& batch,
                      Plan plan, const std::function<void(double)>& progress = {});

// Those of the shorter batch that ends an epoch: with fewer microbatches (the plan says then how many) where
// shardings do not fit so few rows. These may be larger than those of a whole batch, up to one of all rows.
// `of_whole`: the programs of whole batches. Error(kConfiguration) where no number fits.
StepPrograms emitLastBatch(const ForwardModel& model, const OptimizerSpec& optimizer, const BatchCut& whole,
                           Plan& plan, const StepPrograms& of_whole);

// Those of the plan's shorter sequences, by Plan::shorter_lengths. `longest`: of whole batches; what ranks
// keep across steps is the same. Error(kConfiguration), naming the length.
std::vector<StepPrograms> emitShorterSequences(const ForwardModel& model, const OptimizerSpec& optimizer,
                                               const BatchCut& batch, const Plan& plan,
                                               const StepPrograms& longest);

}  // namespace pipeshard
