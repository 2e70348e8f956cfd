// What must hold of the programs of all ranks, each thing said once (ir/program/program_set.h).
#pragma once

#include "ir/program/program_set.h"

namespace pipeshard {

// Every binding fits its kind: as many peers, groups, starts and constants; groups ascending with the rank in
// them; parts inside of their tensors, and sums of equal parts. So what verifyProgram shows of a kind's
// program is true of the rank's, too. Error(kInternal) naming the rank.
void verifyBindings(const ProgramSet& set);

// The same of one rank, whose kind it is; `ranks`: how many there are.
void verifyBinding(const ProgramKind& kind, const RankBinding& binding,
                   const std::vector<std::vector<RankId>>& groups, RankId rank, size_t ranks);

// verifyPrograms of all instantiated programs; where a sample stands for all, in the time that the sample
// takes, and a little for every binding. Errors as verifyPrograms.
void verifyProgramSet(const ProgramSet& set);

}  // namespace pipeshard
