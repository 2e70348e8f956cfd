// What a search of plans asks of stage and mesh assignment.
#pragma once

#include <cstdint>
#include <string>

#include "partition/costs/stage_costs.h"
#include "partition/search/plan_search_request.h"
#include "partition/search/stage_assignment.h"

namespace pipeshard {

// The request to the dynamic program for one number of microbatches: its objective and what is in flight
// follow from the schedule.
AssignmentRequest assignmentRequest(const PlanSearchRequest& request, const StageCosts& costs,
                                    int64_t microbatches);

// For people: "the slowest stage, its update and transfers beside its passes".
std::string objectiveText(const PlanSearchRequest& request);

}  // namespace pipeshard
