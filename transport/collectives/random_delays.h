// Pauses at random moments, to find out whether anything depends on who is faster: a test hook, off unless
// asked for.
//
//   RandomDelays delays(seed, rank, microseconds(300));
//   // pauses around sends, receives and collectives
//   const auto slow = delayCommunicator(*communicator, delays);
//   // of an Executor: pauses before instructions
//   options.delays = &delays;
//
// A worker does both where the environment has PIPESHARD_RANDOM_DELAYS=SEED:MICROSECONDS.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "transport/collectives/communicator.h"

namespace pipeshard {

inline constexpr const char* kRandomDelaysVariable = "PIPESHARD_RANDOM_DELAYS";

class RandomDelays {
 public:
  // Which moments are chosen, and how long each pause is, depends on the seed, the rank and the number of the
  // call alone.
  RandomDelays(uint64_t seed, RankId rank, std::chrono::microseconds longest);
  // Most often nothing; else a yield, a short sleep, or, seldom, one of up to `longest`. Any thread.
  void pause();

 private:
  uint64_t seed_;
  std::chrono::microseconds longest_;
  std::atomic<uint64_t> calls_{0};
};

// "SEED:MICROSECONDS". Error(kUsage) otherwise.
struct RandomDelaysText {
  uint64_t seed = 0;
  std::chrono::microseconds longest{};
};
RandomDelaysText parseRandomDelays(std::string_view text);

// `communicator` with pauses before and after what it does. Both must outlive the result.
std::unique_ptr<Communicator> delayCommunicator(Communicator& communicator, RandomDelays& delays);

}  // namespace pipeshard
