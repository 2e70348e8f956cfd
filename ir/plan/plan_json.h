// plan.json: a Plan as text and back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/plan/plan.h"

namespace pipeshard {

std::string planToJson(const Plan& plan);
// Throws Error(kConfiguration) naming the field, what was found and what is allowed, of every rule that is
// violated; Error(kVersionMismatch).
Plan planFromJson(std::string_view text);
// The rules that a text violates, a message each; empty: planFromJson reads it.
std::vector<std::string> planFaults(std::string_view text);

}  // namespace pipeshard
