// The parts of verifyPrograms; for ir/program_verify*.cc only.
#pragma once

#include <string>
#include <vector>

#include "ir/base/error.h"
#include "ir/program/program.h"

namespace pipeshard {

// "rank 1, instruction 5 (send microbatch=0 peer=0 "dh@0")": how every message of the verifier starts.
std::string describeAt(const Program& program, size_t instruction);

// Throws Error(kInternal): "<place>: <message>; this is a bug in the plan's emission ...".
[[noreturn]] void failVerification(const std::string& place, const std::string& message);

// Ids in range, arities, equal shapes where an instruction demands them, ranks and groups that exist.
void verifyStructure(const std::vector<Program>& programs);

// Of one rank: written before read, not used after the free, freed exactly once.
void verifyLifetimes(const Program& program);

// Between ranks: sends and receives match in order, type and shape.
void verifyMessages(const std::vector<Program>& programs);

// Executes all programs abstractly; when nothing can go on, names the cycle of waits. Needs the above to
// hold.
void verifyProgress(const std::vector<Program>& programs);

}  // namespace pipeshard
