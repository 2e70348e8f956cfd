#include <algorithm>

#include "partition/families/families.h"

namespace pipeshard {
namespace {

// 1f1b with `extra` more microbatches in flight, where there is a use for them.
Schedule alternatingSchedule(const FamilyRequest& request, int64_t extra) {
  const int m = request.microbatches;
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks);
  for (const StageId stage : schedule.rank_of_stage.ids()) {
    std::vector<Action>& order = schedule.orders.emplace_back();
    const int later = request.ranks - 1 - stage.index();
    const int warm_up = std::min<int64_t>(later + std::min<int64_t>(extra, later), m);
    for (int k = 0; k < warm_up; ++k) order.push_back({stage, ActionKind::kForward, k});
    for (int k = warm_up; k < m; ++k) {
      order.push_back({stage, ActionKind::kForward, k});
      order.push_back({stage, ActionKind::kBackward, k - warm_up});
    }
    for (int k = m - warm_up; k < m; ++k) order.push_back({stage, ActionKind::kBackward, k});
  }
  return schedule;
}

}  // namespace

Schedule oneForwardOneBackwardSchedule(const FamilyRequest& request) {
  return alternatingSchedule(request, 0);
}

Schedule eagerOneForwardOneBackwardSchedule(const FamilyRequest& request) {
  return alternatingSchedule(request, request.option("extra", 1));
}

}  // namespace pipeshard
