// Sends and receives put into a schedule of passes: a proof that what verifySchedule accepts can run.
#pragma once

#include "partition/schedules/schedule.h"

namespace pipeshard {

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
