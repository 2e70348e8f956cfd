#include "partition/schedules/families.h"

namespace pipeshard {

Schedule sequentialSchedule(const FamilyRequest& request) {
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks);
  for (int stage = 0; stage < request.ranks; ++stage) {
    std::vector<Action>& order = schedule.orders.emplace_back();
    for (int k = 0; k < request.microbatches; ++k) {
      order.push_back({stage, ActionKind::kForward, k});
      order.push_back({stage, ActionKind::kBackward, k});
    }
  }
  return schedule;
}

Schedule gpipeSchedule(const FamilyRequest& request) {
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks);
  for (int stage = 0; stage < request.ranks; ++stage) {
    std::vector<Action>& order = schedule.orders.emplace_back();
    for (int k = 0; k < request.microbatches; ++k) order.push_back({stage, ActionKind::kForward, k});
    for (int k = 0; k < request.microbatches; ++k) order.push_back({stage, ActionKind::kBackward, k});
  }
  return schedule;
}

}  // namespace pipeshard
