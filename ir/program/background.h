// What waits for the background instructions of a program (Instruction::background). It follows from the
// buffers alone: an instruction waits for those before it whose outputs it reads, writes or frees, and for
// those whose inputs it writes or frees.
//
// Those of the lane are done one at a time in their order. So how far an instruction has to wait is one
// number: how many of them must be complete before it begins.
//
//   0  run backward_1 ... -> "da@1"
//   1  all_reduce background "da" -> "da"       lane[0]
//   2  run backward_2 ... -> "db@1"             waits for 0: it touches nothing of 1
//   3  all_reduce background "db" -> "db"       lane[1]; 0: what is done by the lane comes after the lane's
//                                               work before it anyway
//   4  free "x@1"                               0
//   5  update "a", "da" -> "a"                  1: it reads "da"
//   6  update "b", "db" -> "b"                  2
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
std::vector<std::vector<int>> backgroundGroups(const Program& program);

// `place_of` (may be empty) gives the buffer in whose memory a buffer is.
BackgroundWaits backgroundWaits(const Program& program,
                                const std::function<BufferId(BufferId)>& place_of = {});

}  // namespace pipeshard
