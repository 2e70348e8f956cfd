// Which messages the passes of a schedule need, and the actions that stand for them. Internal to partition/.
//
// Between each ordered pair of pipeline ranks there is one channel: messages arrive in the order in which
// they were sent.
#pragma once

#include <optional>
#include <vector>

#include "partition/schedules/schedule.h"

namespace pipeshard {

bool isSend(ActionKind kind);
bool isReceive(ActionKind kind);
bool isTransfer(ActionKind kind);  // one of the two

// The send that follows a pass, the receive that a pass needs; none where the other stage is on the same
// rank, or there is none.
std::optional<Action> sendAfter(const Action& pass, const RankOfStage& rank_of_stage);
std::optional<Action> receiveBefore(const Action& pass, const RankOfStage& rank_of_stage);

// The other end: 0SEND_F3 and 1RECV_F3, 2SEND_B3 and 1RECV_B3.
Action receiveOf(const Action& send);
Action sendOf(const Action& receive);

}  // namespace pipeshard
