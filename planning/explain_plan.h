// Why a plan is as it is.
#pragma once

#include <vector>

#include "ir/plan/plan.h"
#include "partition/cut/shard_stages.h"
#include "planning/request/progress.h"

namespace pipeshard {

// What explainStages says of a plan. Its model is read again from where the plan says that it is, and its
// step made again. Errors: of loadForward and trainingFamily (kMissingInput where the model is gone,
// kBadModel and kConfiguration where it is not what the plan was made of any more), and of explainStages
// where the plan does not fit the step. What `progress` throws ends it.
std::vector<StageExplanation> explainPlan(const Plan& plan, int alternatives,
                                          const ProgressCallback& progress);

}  // namespace pipeshard
