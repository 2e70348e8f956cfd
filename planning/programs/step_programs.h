// The programs of a training step, from its plan.
#pragma once

#include <functional>
#include <vector>

#include "ir/plan/optimizer.h"
#include "planning/model/training_step.h"
#include "planning/programs/planned_training.h"

namespace pipeshard {

inline constexpr const char* kWithoutLastBatch =
    "leave it out (plan without --last-batch and --data; `run` and `validate` leave out the rest of a file "
    "with --drop-last)";

// What emission cannot know: the ranges of integer inputs, and the types in the weights' files.
void completePrograms(const ForwardModel& model, EmittedPrograms& programs);

// The programs of all ranks, and of one device alone. `progress`: as emitProgramSet.
StepPrograms emitStep(const ForwardModel& model, const OptimizerSpec& optimizer, const BatchCut& batch,
                      Plan plan, const std::function<void(double)>& progress = {});

// Those of the shorter batch that ends an epoch: with fewer microbatches (the plan says then how many) where
// shardings do not fit so few rows, as long as these are no larger than those of a whole batch.
StepPrograms emitLastBatch(const ForwardModel& model, const OptimizerSpec& optimizer, const BatchCut& whole,
                           Plan& plan);

// Those of the plan's shorter sequences, by Plan::shorter_lengths. `longest`: of whole batches; what ranks
// keep across steps is the same. Error(kConfiguration), naming the length.
std::vector<StepPrograms> emitShorterSequences(const ForwardModel& model, const OptimizerSpec& optimizer,
                                               const BatchCut& batch, const Plan& plan,
                                               const StepPrograms& longest);

}  // namespace pipeshard
