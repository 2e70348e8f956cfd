// Completeness, order and freedom from deadlock of schedules.
#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/ranges.h>

#include "ir/error.h"
#include "partition/schedule.h"

namespace pipeshard {
namespace {

using Pass = std::tuple<int, ActionKind, int>;  // stage, kind, microbatch

Pass passOf(const Action& action) { return {action.stage, action.kind, action.microbatch}; }

// The passes that must be complete before `action` can run. A backward pass of the next stage is B, or I where it is halved.
std::vector<Pass> dependencies(const Action& action, int stages, const std::map<Pass, size_t>& all) {
  const auto [stage, kind, k] = passOf(action);
  if (kind == ActionKind::kForward) return stage > 0 ? std::vector<Pass>{{stage - 1, ActionKind::kForward, k}} : std::vector<Pass>{};
  if (kind == ActionKind::kBackwardWeight) return {{stage, ActionKind::kBackwardInput, k}};
  if (kind == ActionKind::kUpdate) {
    return {{stage, all.count({stage, ActionKind::kBackwardWeight, k}) > 0 ? ActionKind::kBackwardWeight : ActionKind::kBackward, k}};
  }
  std::vector<Pass> result = {{stage, ActionKind::kForward, k}};
  if (stage + 1 < stages) {
    const bool halved = all.count({stage + 1, ActionKind::kBackwardInput, k}) > 0;
    result.emplace_back(stage + 1, halved ? ActionKind::kBackwardInput : ActionKind::kBackward, k);
  }
  return result;
}

std::map<Pass, size_t> verifyCompleteness(const ScheduleOrders& orders, int microbatches) {
  std::map<Pass, size_t> rank_of;
  int stages = 0;
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    for (const Action& action : orders[rank]) {
      stages = std::max(stages, action.stage + 1);
      const bool in_range = action.stage >= 0 && action.microbatch >= 0 && action.microbatch < microbatches;
      if (!in_range)
        fail(ErrorCode::kConfiguration, "schedule: rank {} runs {}, of {} microbatches", rank, actionToString(action), microbatches);
      if (!rank_of.emplace(passOf(action), rank).second) fail(ErrorCode::kConfiguration, "schedule: {} runs twice", actionToString(action));
    }
  }
  for (int stage = 0; stage < stages; ++stage) {
    for (int k = 0; k < microbatches; ++k) {
      const auto count = [&](ActionKind kind) { return rank_of.count({stage, kind, k}); };
      const size_t whole = count(ActionKind::kBackward);
      const bool halved = whole == 0 && count(ActionKind::kBackwardInput) == 1 && count(ActionKind::kBackwardWeight) == 1;
      const bool unhalved = whole == 1 && count(ActionKind::kBackwardInput) == 0 && count(ActionKind::kBackwardWeight) == 0;
      if (count(ActionKind::kForward) != 1) fail(ErrorCode::kConfiguration, "schedule: {}F{} is missing", stage, k);
      if (!halved && !unhalved) fail(ErrorCode::kConfiguration, "schedule: stage {} needs either B{} or both I{} and W{}", stage, k, k, k);
    }
  }
  return rank_of;
}

void verifyOwnOrder(const ScheduleOrders& orders, const std::map<Pass, size_t>& rank_of, int stages) {
  std::map<Pass, size_t> position;
  for (const std::vector<Action>& order : orders) {
    for (size_t i = 0; i < order.size(); ++i) position[passOf(order[i])] = i;
  }
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    for (const Action& action : orders[rank]) {
      for (const Pass& needed : dependencies(action, stages, rank_of)) {
        if (rank_of.at(needed) == rank && position.at(needed) > position.at(passOf(action))) {
          const auto& [stage, kind, k] = needed;
          fail(ErrorCode::kConfiguration, "schedule: rank {} runs {} before {}", rank, actionToString(action),
               actionToString({stage, kind, k}));
        }
      }
    }
  }
}

}  // namespace

void verifySchedule(const Schedule& schedule) {
  const ScheduleOrders& orders = schedule.orders;
  const int microbatches = schedule.microbatches;
  const std::map<Pass, size_t> rank_of = verifyCompleteness(orders, microbatches);
  const int stages = rank_of.empty() ? 0 : std::get<0>(rank_of.rbegin()->first) + 1;
  verifyOwnOrder(orders, rank_of, stages);
  std::vector<size_t> at(orders.size());
  std::map<Pass, bool> done;
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < orders.size(); ++rank) {
      for (; at[rank] < orders[rank].size(); ++at[rank], moved = true) {
        const Action& action = orders[rank][at[rank]];
        const std::vector<Pass> needed = dependencies(action, stages, rank_of);
        if (!std::all_of(needed.begin(), needed.end(), [&](const Pass& pass) { return done.count(pass) > 0; })) break;
        done[passOf(action)] = true;
      }
    }
  }
  std::vector<std::string> stuck;
  for (size_t rank = 0; rank < orders.size(); ++rank) {
    if (at[rank] < orders[rank].size()) stuck.push_back(fmt::format("rank {} at {}", rank, actionToString(orders[rank][at[rank]])));
  }
  if (!stuck.empty()) fail(ErrorCode::kConfiguration, "schedule: the ranks wait for each other: {}", fmt::join(stuck, ", "));
}

}  // namespace pipeshard
