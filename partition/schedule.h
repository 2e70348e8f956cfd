// Schedules as small pure functions: for each rank the order of its forward and backward passes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace pipeshard {

enum class ActionKind : char { kForward = 'F', kBackward = 'B', kBackwardInput = 'I', kBackwardWeight = 'W' };

struct Action {
  int stage = 0;
  ActionKind kind = ActionKind::kForward;
  int microbatch = 0;
  friend bool operator==(const Action&, const Action&) = default;
};
std::string actionToString(const Action& action);  // "2F3": stage, kind, microbatch

// orders[rank]: the actions of the rank (= stage here), first to last.
using ScheduleOrders = std::vector<std::vector<Action>>;

// All names, for --help and messages.
const std::vector<std::string>& scheduleNames();
// Throws Error(kUsage) for an unknown name, listing those that exist. stages >= 1, microbatches >= 1 (fewer microbatches
// than stages are fine).
ScheduleOrders makeSchedule(std::string_view name, int stages, int microbatches);

// Completeness, order (F before B, upstream before downstream) and freedom from deadlock; Error(kInternal) otherwise.
void verifySchedule(const ScheduleOrders& orders, int microbatches);

}  // namespace pipeshard
