// Sizing a rank's arena and touching all of it before the first step, without waking the out-of-memory
// killer.
#pragma once

#include <cstddef>

#include "transport/shared/mapping.h"
#include "transport/shared/shared_layout.h"

namespace pipeshard::shm {

// Grows the segment to `bytes`, maps it, and gives every page its memory. Refuses with Error(kOutOfMemory)
// before touching anything when the arenas being made by all ranks of the job exceed the memory available
// now.
Mapping populateArena(int descriptor, size_t bytes, ControlView view, RankId rank);

}  // namespace pipeshard::shm
