// Why a plan is as it is.
#pragma once

#include <vector>

#include "ir/plan/plan.h"
#include "partition/cut/shard_stages.h"
#include "planning/request/progress.h"

namespace pipeshard {

// What explainStages says of a plan, whose model must still be where it was.
std::vector<StageExplanation> explainPlan(const Plan& plan, int alternatives,
                                          const ProgressCallback& progress);

}  // namespace pipeshard
