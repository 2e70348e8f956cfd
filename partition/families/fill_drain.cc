#include "partition/families/families.h"

namespace pipeshard {

Schedule sequentialSchedule(const FamilyRequest& request) {
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks);
  for (const StageId stage : schedule.rank_of_stage.ids()) {
    std::vector<Action>& order = schedule.orders.emplace_back();
    for (int k = 0; k < request.microbatches; ++k) {
      order.push_back({stage, ActionKind::kForward, k});
      order.push_back({stage, ActionKind::kBackward, k});
    }
  }
  return schedule;
}

Schedule loopedBreadthFirstSchedule(const FamilyRequest& request) {
  const int m = request.microbatches;
  Schedule schedule;
  schedule.rank_of_stage = loopedPlacement(request.ranks, request.ranks * request.chunks);
  for (int rank = 0; rank < request.ranks; ++rank) {
    std::vector<Action>& order = schedule.orders.emplace_back();
    const auto runAll = [&](int chunk, ActionKind kind) {
      const StageId stage(chunk * request.ranks + rank);
      for (int k = 0; k < m; ++k) order.push_back({stage, kind, k});
    };
    for (int chunk = 0; chunk < request.chunks; ++chunk) runAll(chunk, ActionKind::kForward);
    for (int chunk = request.chunks - 1; chunk >= 0; --chunk) runAll(chunk, ActionKind::kBackward);
  }
  return schedule;
}

Schedule gpipeSchedule(const FamilyRequest& request) { return loopedBreadthFirstSchedule(request); }

}  // namespace pipeshard
