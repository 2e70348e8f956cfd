// From a request to a plan, the training step and every rank's program: the order of planning's passes.
#pragma once

#include "planning/programs/planned_training.h"
#include "planning/request/plan_request.h"
#include "planning/request/progress.h"

namespace pipeshard {

// Touches no device and writes nothing. Where nobody says how many microbatches, and the batch cannot be cut
// (examples meet), there is one, and a note says why; a batch that is chosen then has several rows. Errors:
// those of reading the model (kMissingInput, kBadModel), of requests that cannot be (kUsage, kConfiguration),
// kOutOfMemory where nothing fits (advice.h says what would). Throws JobInterrupted where a search was
// interrupted before it had found a plan.
PlannedTraining planTraining(const PlanRequest& request, const ProgressCallback& progress,
                             Interruption* interruption = nullptr);

}  // namespace pipeshard
