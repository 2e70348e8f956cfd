// Sleeping and waking across processes: a futex word in shared memory (protocol:
// transport/shared/shared_layout.h).
#pragma once

#include <chrono>
#include <cstdint>

#include "transport/shared/shared_layout.h"

namespace pipeshard::shm {

// Tells a rank that something it may wait for has changed. Call after the change has been stored.
void ring(RankState& state);

// Counts a thread as sleeping (or about to) for as long as it lives.
class Sleeper {
 public:
  explicit Sleeper(RankState& state) : state_(state) {
    state_.sleeping.fetch_add(1, std::memory_order_seq_cst);
  }
  ~Sleeper() { state_.sleeping.fetch_sub(1, std::memory_order_relaxed); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  RankState& state_;
};

// Sleeps while the doorbell has `value`, at most `limit`. May return early.
void sleepOn(RankState& state, uint32_t value, std::chrono::nanoseconds limit);

}  // namespace pipeshard::shm
