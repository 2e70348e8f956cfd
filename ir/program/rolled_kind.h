// A kind's lists with the loops that they have: what was emitted in full gets small.
#pragma once

#include "ir/program/loops.h"
#include "ir/program/program_set.h"

namespace pipeshard {

// What loops see of a kind's buffers: also what the kind says of them. Those with a source have no numbers.
void addBuffers(const ProgramKind& kind, NumberedList& list);
void addInstructions(const Program& program, NumberedList& list);

// The same kind; loops are found where a list has none yet.
void rollLoops(ProgramKind& kind);

}  // namespace pipeshard
