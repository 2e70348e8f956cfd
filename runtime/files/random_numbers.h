// Counter-based random numbers: each is a function of where it stands alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ir/program/program.h"

namespace pipeshard {

// A box of an input of the whole batch, row-major, as in `step` (1-based). Element e is a function of (seed,
// step, the input's name, e): of ProgramInput::drawn where that is given, else standard normal for
// floating-point types (the float32 value is the float64 value rounded), integers in [low, high), bools.
void writeRandomNumbers(const ProgramInput& input, uint64_t seed, int64_t step, const Shard& box,
                        std::span<std::byte> out);

}  // namespace pipeshard
