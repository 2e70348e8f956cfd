// What to change when nothing fits into the devices' memory.
#pragma once

#include "planning/pipeline.h"

namespace pipeshard {

// planTraining. Where that says Error(kOutOfMemory), the same error lists the smallest change of each kind
// that would make the plan feasible, with everything else as asked: memory per device, microbatches,
// recomputation (layer by layer; of whole stages where that is not enough or needs less), sharing parameters
// (zero3) or choosing freely (auto), devices; or, where none of these alone is enough, several together. Each
// was planned to the end, so what is listed works. What the plan would need of a device is said of each.
// Limits are counted trials, never the clock. Progress says how many of them are behind, by the phase of
// each.
PlannedTraining planOrAdvise(const PlanRequest& request, const ProgressCallback& progress,
                             Interruption* interruption = nullptr);

}  // namespace pipeshard
