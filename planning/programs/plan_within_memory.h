// One way to run the step, decided and emitted, as long as it fits into the devices.
#pragma once

#include "planning/model/forward_model.h"
#include "planning/model/training_step.h"
#include "planning/programs/planned_training.h"

namespace pipeshard {

// Plans and emits: layers, stages, devices, schedule, shardings, last batch, programs of steps of all sizes.
// The solver's memory rows foresee; what a device needs is known when its memory is planned, which it has for
// the largest of its programs. If that is more than there is, the solver gets so much less, and again, as
// long as some stage is sharded: else there is nothing to choose.
// `planned.plan` comes with what is known before. Errors: kOutOfMemory, kConfiguration, kUsage, kBadModel.
BatchCut planWithinMemory(const PlanRequest& request, const ForwardModel& model,
                          const PartitionOptions& asked, const ProgressCallback& progress,
                          PlannedTraining& planned);

}  // namespace pipeshard
