// `--stages auto`: the search for the plan with the fastest step. It decides the number of microbatches, the
// stages with their submeshes, logical meshes and recomputation, and the schedule. Four steps, from many
// plans that are judged cheaply to few that are judged well:
//
//   1. assign      for each number of microbatches the stages with the least objective, an estimate of a step
//                  by a formula (stage_assignment.h); numbers tried later only look for what beats the others
//   2. simulate    the 30 assignments with the least objective, pass by pass (plan_prediction.h), and beside
//                  them stages of equal size (equal_stages.h)
//   3. schedules   the best few under every schedule that may be; and other stages for schedules with several
//                  stages per pipeline rank (chunk_search.h)
//   4. neighbours  the best plan with one decision changed: a cut moved, submeshes of other sizes, another
//                  mesh, recomputation (plan_neighbours.h). While one of them is faster, it is the best
//
// Numbers of microbatches are tried upwards from the first one, then downwards from it. Each direction ends
// when two in a row are no better than what is known, if the last one tried is also far away: upwards 32
// times the last number that was better, downwards a quarter of it. A number is no better, too, where lower
// bounds of its costs (CountedCosts::least), which are known sooner, rule out that it comes within a 32nd of
// the best.
//
// Everything is counted, nothing is timed: the same request gives the same result, with any number of
// threads.
#pragma once

#include "partition/search/plan_search_request.h"

namespace pipeshard {

// The best plans, fastest first, and what was tried. No plan where nothing fits into memory: leastMemory
// (search_memory.h) says how much would do. Where that is so, or memory keeps plans from being faster, the
// search is done once more with other costs, if the request has them. Errors: kConfiguration, kBadModel as
// PlanSearchRequest::costs; kUsage for a schedule that is none.
PlanSearchResult searchPlans(const PlanSearchRequest& request);

}  // namespace pipeshard
