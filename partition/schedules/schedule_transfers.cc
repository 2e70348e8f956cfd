#include "partition/schedules/schedule_transfers.h"

namespace pipeshard {

bool isSend(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }
bool isReceive(ActionKind kind) {
  return kind == ActionKind::kReceiveForward || kind == ActionKind::kReceiveBackward;
}

std::optional<Action> sendAfter(const Action& action, const std::vector<int>& rank_of_stage) {
  const bool forward = action.kind == ActionKind::kForward;
  if (!forward && action.kind != ActionKind::kBackward && action.kind != ActionKind::kBackwardInput)
    return std::nullopt;
  const int other = forward ? action.stage + 1 : action.stage - 1;
  if (other < 0 || other >= std::ssize(rank_of_stage)) return std::nullopt;
  if (rank_of_stage[other] == rank_of_stage[action.stage]) return std::nullopt;
  return Action{action.stage, forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
                action.microbatch};
}

std::optional<Action> receiveBefore(const Action& action, const std::vector<int>& rank_of_stage) {
  const bool forward = action.kind == ActionKind::kForward;
  if (!forward && action.kind != ActionKind::kBackward && action.kind != ActionKind::kBackwardInput)
    return std::nullopt;
  const int other = forward ? action.stage - 1 : action.stage + 1;
  if (other < 0 || other >= std::ssize(rank_of_stage)) return std::nullopt;
  if (rank_of_stage[other] == rank_of_stage[action.stage]) return std::nullopt;
  return Action{action.stage, forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
                action.microbatch};
}

Action receiveOf(const Action& send) {
  if (send.kind == ActionKind::kSendForward)
    return {send.stage + 1, ActionKind::kReceiveForward, send.microbatch};
  return {send.stage - 1, ActionKind::kReceiveBackward, send.microbatch};
}

Action sendOf(const Action& receive) {
  if (receive.kind == ActionKind::kReceiveForward)
    return {receive.stage - 1, ActionKind::kSendForward, receive.microbatch};
  return {receive.stage + 1, ActionKind::kSendBackward, receive.microbatch};
}

}  // namespace pipeshard
