#include <algorithm>

#include "partition/schedules/families.h"

namespace pipeshard {

Schedule oneForwardOneBackwardSchedule(const FamilyRequest& request) {
  const int m = request.microbatches;
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks);
  for (int stage = 0; stage < request.ranks; ++stage) {
    std::vector<Action>& order = schedule.orders.emplace_back();
    const int warm_up = std::min(request.ranks - 1 - stage, m);
    for (int k = 0; k < warm_up; ++k) order.push_back({stage, ActionKind::kForward, k});
    for (int k = warm_up; k < m; ++k) {
      order.push_back({stage, ActionKind::kForward, k});
      order.push_back({stage, ActionKind::kBackward, k - warm_up});
    }
    for (int k = m - warm_up; k < m; ++k) order.push_back({stage, ActionKind::kBackward, k});
  }
  return schedule;
}

}  // namespace pipeshard
