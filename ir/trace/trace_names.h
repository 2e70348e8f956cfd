// What traces call an instruction: "0F3" (forward pass of microbatch 3 through stage 0; B, I and W likewise),
// "recompute 0F3", "update", "send h@3". The same for what was simulated and what was measured, so that both
// can be laid over each other.
#pragma once

#include <string>

#include "ir/program/program.h"

namespace pipeshard {

std::string traceName(const Program& program, const Instruction& instruction);

}  // namespace pipeshard
