// Plans that are there, and that people may have edited, made into programs again.
#pragma once

#include "ir/graph/training_graph.h"
#include "ir/plan/optimizer.h"
#include "ir/plan/plan.h"
#include "planning/model/forward_model.h"
#include "planning/model/training_step.h"
#include "planning/programs/planned_training.h"
#include "planning/request/progress.h"

namespace pipeshard {

// The plan as it stands: nothing is decided again. Numbers that follow from it (FLOPs, microbatches in
// flight, ...) are filled in; a note says that predicted times are those from before. Error(kConfiguration)
// that names every rule that the plan violates; errors of the model. `in_float64`: PlanRequest::in_float64.
PlannedTraining replayPlan(const Plan& plan, const ProgressCallback& progress, bool in_float64 = false);

// The two halves of it, for plan_check.h, which keeps each one's faults.
// A plan's model as far as its training step.
struct ReplayedModel {
  OptimizerSpec optimizer;
  ForwardModel model;
  BatchCut batch;
  TrainingGraph training;
};
ReplayedModel replayModel(const Plan& plan, const ProgressCallback& progress, bool in_float64 = false);
// The programs of planned.plan, which must fit the model. The plan may get fewer microbatches for the last
// batch (emitLastBatch): one without programs (`plan --no-programs`) was not asked what fits.
void emitReplayed(const ReplayedModel& replayed, PlannedTraining& planned);

}  // namespace pipeshard
