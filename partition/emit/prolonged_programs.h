// The programs of many microbatches, of those of a few: what a rank does in the steady state of its schedule
// (partition/schedules/steady_state.h) it does alike in every iteration. Internal to partition/emit/.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "partition/emit/rank_program.h"

namespace pipeshard {

// `shorter`: of the same step with few iterations, with one more, and with two more; `more`: how many more
// than the first it has in all; `microbatches`: of the step then. Nothing: kinds, bindings or lists of
// programs do not grow evenly. The result is not verified: it is right only if verifyProgramSet says so.
std::optional<EmittedPrograms> prolongedPrograms(std::array<EmittedPrograms, 3> shorter, int64_t more,
                                                 int64_t microbatches);

}  // namespace pipeshard
