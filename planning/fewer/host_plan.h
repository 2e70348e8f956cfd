// A plan on a host whose disk is its own: the coordinator's host may have made more beside plan.json than was
// copied.
#pragma once

#include <cstdint>
#include <string>

#include "planning/request/progress.h"

namespace pipeshard {

// Makes what is not there yet, of plan.json and the model, alike on every host: programs
// (`plan --no-programs`), those that evaluate so many held-out examples (0: none do), and, where `directory`
// is PLAN/fewer/DEVICES, that plan. Makes nothing where there is no plan.json, or one that was edited since
// the programs were made: that is not the plan of the other hosts. Errors: as refreshPrograms, makeEvaluation
// and prepareFewerPlans; kMissingInput where there can be no plan for so few devices.
void completePlan(const std::string& directory, int64_t held_out_rows, const ProgressCallback& progress);

}  // namespace pipeshard
