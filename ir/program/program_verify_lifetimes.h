// The part of verifyPrograms that looks at the buffers of one rank; for ir/program/program_verify.cc only.
#pragma once

#include "ir/program/program.h"

namespace pipeshard {

// Written before read, not used after the free, freed exactly once; passes of one microbatch read one version
// of every parameter. Needs a sound structure.
void verifyLifetimes(const Program& program);

}  // namespace pipeshard
