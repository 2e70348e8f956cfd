// Programs as text, for people, messages and tests.
#pragma once

#include <cstddef>
#include <string>

#include "ir/program/program.h"

namespace pipeshard {

// Deterministic text, one line per buffer and instruction.
std::string printProgram(const Program& program);

// One instruction as messages and printProgram show it: `send microbatch=0 peer=1 "h@0"`.
// At most so many inputs and outputs are named each.
std::string describeInstruction(const Program& program, const Instruction& instruction,
                                size_t most_buffers = 6);

// "rank 1, instruction 5 (send microbatch=0 peer=0 "dh@0")": how messages about programs name a place.
std::string describeAt(const Program& program, size_t instruction);

}  // namespace pipeshard
