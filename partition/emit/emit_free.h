// Where in a program each buffer ends: its kFree. Internal to partition/.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "ir/base/ids.h"
#include "ir/program/program.h"

namespace pipeshard {

// A rank whose program is that of its kind, and is complete but for the frees.
struct FreedRank {
  const Program* program = nullptr;
  std::vector<std::pair<RankId, RankId>> peers;  // of the program's peers, ascending: which rank it is here
};

// The buffers that end, each with the instruction behind which it does; one more than there are: at the end
// of the step. Ascending.
using Frees = std::vector<std::pair<size_t, BufferId>>;

// Where the buffers of all ranks end. `ranks` is closed: who sends to one of them is one of them.
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
IdVector<RankId, Frees> findFrees(const IdVector<RankId, FreedRank>& ranks);

// Adds the kFree instructions to a program.
void insertFrees(const Frees& frees, Program& program);

}  // namespace pipeshard
