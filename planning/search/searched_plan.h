// `--stages auto`: the best plan of the search that can be made.
#pragma once

#include "planning/model/forward_model.h"
#include "planning/model/training_step.h"
#include "planning/programs/planned_training.h"

namespace pipeshard {

// Searches (stage_search.h) and takes the first plan that planWithinMemory can make: what whole stages need
// is known only then. `model` gets the number of microbatches that was chosen; `planned` the record of the
// search. Throws JobInterrupted where the search was interrupted before it had found a plan.
BatchCut planSearched(const PlanRequest& request, const PartitionOptions& options, ForwardModel& model,
                      const ProgressCallback& progress, Interruption& interruption, PlannedTraining& planned);

}  // namespace pipeshard
