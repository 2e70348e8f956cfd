#include "partition/schedules/schedule_transfers.h"

namespace pipeshard {

bool isSend(ActionKind kind) { return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward; }
bool isReceive(ActionKind kind) {
  return kind == ActionKind::kReceiveForward || kind == ActionKind::kReceiveBackward;
}
bool isTransfer(ActionKind kind) { return isSend(kind) || isReceive(kind); }

std::optional<Action> sendAfter(const Action& action, const RankOfStage& rank_of_stage) {
  const bool forward = action.kind == ActionKind::kForward;
  if (!forward && action.kind != ActionKind::kBackward && action.kind != ActionKind::kBackwardInput)
    return std::nullopt;
  const StageId other = forward ? action.stage.next() : action.stage.previous();
  if (!rank_of_stage.has(other)) return std::nullopt;
  if (rank_of_stage[other] == rank_of_stage[action.stage]) return std::nullopt;
  return Action{action.stage, forward ? ActionKind::kSendForward : ActionKind::kSendBackward,
                action.microbatch};
}

std::optional<Action> receiveBefore(const Action& action, const RankOfStage& rank_of_stage) {
  const bool forward = action.kind == ActionKind::kForward;
  if (!forward && action.kind != ActionKind::kBackward && action.kind != ActionKind::kBackwardInput)
    return std::nullopt;
  const StageId other = forward ? action.stage.previous() : action.stage.next();
  if (!rank_of_stage.has(other)) return std::nullopt;
  if (rank_of_stage[other] == rank_of_stage[action.stage]) return std::nullopt;
  return Action{action.stage, forward ? ActionKind::kReceiveForward : ActionKind::kReceiveBackward,
                action.microbatch};
}

Action receiveOf(const Action& send) {
  if (send.kind == ActionKind::kSendForward)
    return {send.stage.next(), ActionKind::kReceiveForward, send.microbatch};
  return {send.stage.previous(), ActionKind::kReceiveBackward, send.microbatch};
}

Action sendOf(const Action& receive) {
  if (receive.kind == ActionKind::kReceiveForward)
    return {receive.stage.previous(), ActionKind::kSendForward, receive.microbatch};
  return {receive.stage.next(), ActionKind::kSendBackward, receive.microbatch};
}

}  // namespace pipeshard
