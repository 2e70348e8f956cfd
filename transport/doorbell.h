// Sleeping and waking across processes: a futex word in shared memory (protocol: transport/shared_layout.h).
#pragma once

#include <chrono>
#include <cstdint>

#include "transport/shared_layout.h"

namespace pipeshard::shm {

// Tells a rank that something it may wait for has changed. Call after the change has been stored.
void ring(RankState& state);

// Sleeps while the doorbell has `value`, at most `limit`. May return early.
void sleepOn(RankState& state, uint32_t value, std::chrono::nanoseconds limit);

}  // namespace pipeshard::shm
