#include "partition/schedules/schedule.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

constexpr std::string_view kKindNames[] = {"F",           "B",      "I",      "W",      "UPDATE",
                                           "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

}  // namespace

std::string_view actionKindName(ActionKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

bool isPass(ActionKind kind) { return kind <= ActionKind::kBackwardWeight; }

std::string actionToString(const Action& action) {
  std::string text = fmt::format("{}{}", action.stage, actionKindName(action.kind));
  return action.microbatch < 0 ? text : text + std::to_string(action.microbatch);
}

int64_t peakActivations(const std::vector<Action>& order, std::optional<StageId> alone) {
  const auto isForward = [](const Action& action) {
    return action.kind == ActionKind::kForward || !isPass(action.kind);
  };
  // evaluation keeps nothing for a backward pass
  const bool keeps = !std::all_of(order.begin(), order.end(), isForward);
  int64_t held = 0;
  int64_t peak = 0;
  for (const Action& action : order) {
    if (alone && action.stage != *alone) continue;
    if (action.kind == ActionKind::kForward) peak = std::max(peak, keeps ? ++held : 1);
    if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kBackwardWeight) --held;
  }
  return peak;
}

bool splitsBackward(const Schedule& schedule, StageId stage) {
  const std::vector<Action>& order = schedule.orders.at(schedule.rank_of_stage.at(stage));
  return std::any_of(order.begin(), order.end(), [stage](const Action& action) {
    return action.stage == stage && action.kind == ActionKind::kBackwardWeight;
  });
}

std::vector<Action> orderOfReplica(const Schedule& schedule, StageId stage, int replica) {
  std::vector<Action> order;
  for (const Action& action : schedule.orders.at(schedule.rank_of_stage.at(stage))) {
    const bool elsewhere =
        isPass(action.kind) && action.microbatch % schedule.replicasOf(action.stage) != replica;
    if (!elsewhere) order.push_back(action);
  }
  return order;
}

}  // namespace pipeshard
