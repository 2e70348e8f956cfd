// Which background instructions of a program (Instruction::background) each instruction has to wait for. It
// follows from the buffers alone: an instruction waits for a background one before it when it reads, writes
// or frees an output of that one, or writes or frees an input of it.
//
// Background collectives are done by one thread, the *lane*, one at a time in their order. So how far an
// instruction has to wait for the lane is one number: how many of the lane's instructions must be complete
// before it begins.
//
//   position, instruction                       waits for how many of the lane's
//   0  run backward_1 ... -> "da@1"             0
//   1  all_reduce background "da" -> "da"       0 (it is the lane's first)
//   2  run backward_2 ... -> "db@1"             0: it touches nothing of 1
//   3  all_reduce background "db" -> "db"       0: the lane does it behind 1 in any case
//   4  free "x@1"                               0
//   5  update "a", "da" -> "a"                  1: it reads "da"
//   6  update "b", "db" -> "b"                  2: it reads "db"
#pragma once

#include <functional>
#include <vector>

#include "ir/program/program.h"

namespace pipeshard {

// A background instruction that the lane does, not a receive.
bool isOfLane(const Instruction& instruction);

struct BackgroundWaits {
  std::vector<size_t> lane;  // positions of the lane's instructions, ascending
  // The rest by instruction, and one more entry for the end of the step.
  std::vector<size_t> before;  // how many of the lane's must be complete before it begins
  // Positions of the background receives that must have arrived before it begins, ascending. Each receive is
  // with the first that needs it, or a later message from its peer.
  std::vector<std::vector<size_t>> receives;
};

// The ranks of the groups that meet in the program's background collectives. None: the rank needs no second
// communicator.
std::vector<std::vector<RankId>> backgroundGroups(const Program& program);

// `place_of` (may be empty) gives the buffer in whose memory a buffer is.
BackgroundWaits backgroundWaits(const Program& program,
                                const std::function<BufferId(BufferId)>& place_of = {});

}  // namespace pipeshard
