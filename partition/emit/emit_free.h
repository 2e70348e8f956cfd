// Where in a program each buffer ends: its kFree. Internal to partition/.
#pragma once

#include <vector>

#include "ir/program/program.h"

namespace pipeshard {

// Adds the kFree instructions to programs that are complete but for them.
//
// A buffer that is not sent is freed right after its last use. A buffer that is sent could make its kFree
// wait for the receiver, and such waits could close a cycle. So it is freed where the rank already knows that
// the receiver has it: after the last use, and after the first receive whose message proves it, because the
// message was posted (directly or through other ranks) after the receive. That is found with vector clocks
// (Mattern 1989, "Virtual time and global states of distributed systems"). A buffer for which no such proof
// arrives is freed at the end of the step. No kFree inside the step therefore ever waits, and cycles of waits
// cannot arise where there were none.
//   rank 0: run F0 -> "h@0"; send "h@0"; ...; receive "dh@0"; free "h@0"
//   (rank 1 sends "dh@0" after it has received "h@0")
void insertFrees(std::vector<Program>& programs);

}  // namespace pipeshard
