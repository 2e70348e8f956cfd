// What a plan's search has found, for people.
#pragma once

#include <string>

#include "ir/plan/plan.h"

namespace pipeshard {

// The chosen stages and the best plans found; `all`: also what neighbours would have cost, and every stage's
// costs. "" for a plan that was not searched for.
std::string searchTables(const Plan& plan, bool all);

}  // namespace pipeshard
