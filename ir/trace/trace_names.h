// What a trace says of an instruction, the same for what was simulated and what was measured, so that both
// can be laid over each other. Names are for people: "0F3" (forward pass of microbatch 3 through stage 0; I
// and W likewise), "recompute 0F3", "update", "send h@3".
#pragma once

#include <string>

#include "ir/program/program.h"
#include "ir/trace/trace_event.h"

namespace pipeshard {

TraceWork traceWork(const Program& program, const Instruction& instruction);
std::string traceName(const Program& program, const Instruction& instruction);

// With stage, microbatch, work and name; all else is for the caller to say.
TraceEvent traceEventOf(const Program& program, const Instruction& instruction);

}  // namespace pipeshard
