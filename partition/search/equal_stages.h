// Pipelines as people lay them out by hand: p stages of about equally many layers on p equal submeshes that
// cover the cluster, each in the way that the stated objective likes best, for every p. None has a lower
// objective than what the exact search finds; simulated, they are the better ones at times, so they are
// candidates by construction. Internal to partition/.
//
//   7 layers on 2x4 devices, p = 4: layers 0..0, 1..2, 3..4, 5..6 on two devices each
#pragma once

#include <vector>

#include "partition/search/stage_assignment.h"

namespace pipeshard {

// Within the request's limits (stages, submeshes, memory); ascending number of stages.
std::vector<Assignment> equalStages(const AssignmentRequest& request);

}  // namespace pipeshard
