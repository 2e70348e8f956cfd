// Checks a plan.json that people may have edited: against its rules, its model and its devices.
#pragma once

#include <string>
#include <vector>

#include "planning/request/progress.h"

namespace pipeshard {

struct PlanCheck {
  // every rule that is violated, with field, what was found and what was expected
  std::vector<std::string> faults;
  std::vector<std::string> notes;  // what is allowed, and seldom meant
  bool edited = false;             // plan.json is not what the programs were made from
};
// Of a plan directory or a plan.json: first the text; if it can be read, schedule, model, layers, stages,
// shardings, programs, memory. Errors: kMissingInput, kVersionMismatch.
PlanCheck checkPlan(const std::string& path, const ProgressCallback& progress);

}  // namespace pipeshard
