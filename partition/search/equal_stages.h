// Pipelines as people lay them out by hand: p stages of about equally many layers on p equal submeshes that
// cover the cluster, for every p; each stage in the way that the objective likes best. By the objective they
// are never better than what the exact search finds. But simulated they are at times the faster ones, so the
// search of plans simulates them, too. Internal to partition/.
//
//   7 layers on 2x4 devices, p = 4: layers 0..0, 1..2, 3..4, 5..6 on two devices each
#pragma once

#include <vector>

#include "partition/search/stage_assignment.h"

namespace pipeshard {

// Within the request's limits (stages, submeshes, memory); ascending number of stages.
std::vector<Assignment> equalStages(const AssignmentRequest& request);

}  // namespace pipeshard
