// The rules that every schedule keeps, whoever has made it.
#pragma once

#include "partition/schedules/schedule.h"

namespace pipeshard {

// Completeness (every stage runs every microbatch once, B or both I and W), order, placement (each stage on
// one rank), version rules (an update takes the gradients of its minibatch and of no other; no pass reads a
// version that its rank has not made by then; versions do not go back), and freedom from deadlock: passes of
// an overlapped pair start together. Without sends and receives that suffices for them to be placed. Where
// the orders have them: every message is sent after its pass and received before its pass, in one order at
// both ends, and the orders do not deadlock when every send waits for its receive. Error(kConfiguration); its
// message names the fault and shows a window of the orders with the faulty step marked:
//     schedule 1f1b: rank 1 runs 1B0 before 1F0, which it needs
//         rank 0, step 0:  0F0   0F1   0B0   0F2   0B1   0B2
//         rank 1, step 0: >1B0<  1F0   1F1   1B1   1F2   1B2
void verifySchedule(const Schedule& schedule);

}  // namespace pipeshard
