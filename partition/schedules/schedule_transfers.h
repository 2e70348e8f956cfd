// Which messages the passes of a schedule need, the actions that stand for them, and where these stand in the
// orders. Internal to partition/.
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

// The send that follows a pass, the receive that a pass needs; none where the other stage is on the same
// rank, or there is none.
std::optional<Action> sendAfter(const Action& pass, const std::vector<int>& rank_of_stage);
std::optional<Action> receiveBefore(const Action& pass, const std::vector<int>& rank_of_stage);

// The other end: 0SEND_F3 and 1RECV_F3, 2SEND_B3 and 1RECV_B3.
Action receiveOf(const Action& send);
Action sendOf(const Action& receive);

// The orders of a schedule of passes that verifySchedule accepts, with sends and receives between pipeline
// ranks (not between stages of one rank) placed so that they do not deadlock even if every send waits for its
// receive. A send follows its pass (both sends an overlapped pair). A receive stands before the pass that
// needs it, after those that its sender sends before; earlier only where ranks would wait for each other
// otherwise, and then it takes a message that its sender is stuck with: the first that both sides can
// exchange when F, I and W take equal times. So no order of passes that could run is lost, and few messages
// wait for their passes: at most 1 on a rank for gpipe, 2 for 1f1b and zb-h1, and never more than the
// activations that ranks stash.
ScheduleOrders withTransfers(const Schedule& schedule);

}  // namespace pipeshard
