// Receives are posted before the rank needs them, so that messages come while it computes.
//
// In an emitted program a message is received right before the pass that reads it. Here its receive becomes a
// background one (Instruction::background) and moves up, over the passes of up to kPassesAhead other actions
// of the schedule:
//
//   run forward microbatch=2 "h@2" -> ...                    receive background microbatch=3 peer=0 -> "h@3"
//   send microbatch=2 peer=2 ...                             run forward microbatch=2 "h@2" -> ...
//   receive microbatch=0 peer=2 -> "dy@0"                    send microbatch=2 peer=2 ...
//   run backward_input microbatch=0 "dy@0" ...               receive microbatch=0 peer=2 -> "dy@0"
//   receive microbatch=3 peer=0 -> "h@3"                     run backward_input microbatch=0 "dy@0" ...
//   run forward microbatch=3 "h@3" -> ...                    run forward microbatch=3 "h@3" -> ...
//
// (and so does that of "dy@0"). What a peer sends for one action is posted no earlier than where the rank
// waits for what it has sent for the action before: a rank holds at most the messages of one action more for
// each peer that sends to it. Parameters and gradients, which travel once per step, are received where they
// were.
//
// No wait becomes longer: posting waits for nothing, and the wait for the message only moves to where the
// message is needed. Orders per pair of ranks stay. So no cycle of waits arises, and the bits are the same.
// Internal to partition/.
#pragma once

#include <functional>

#include "ir/program/program.h"

namespace pipeshard {

// Two, because a split backward pass is two short actions.
inline constexpr int kPassesAhead = 2;

// Of one rank, from the peers that `from` names. To be called before frees are inserted.
void postReceivesEarly(Program& program, const std::function<bool(RankId peer)>& from);

}  // namespace pipeshard
