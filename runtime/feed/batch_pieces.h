// Batches that the coordinator reads from a pipe, on their way to the workers of other hosts: each host has a
// ring of its own (runtime/data/batch_ring.h), which its workers read as they read the coordinator's on one
// machine.
//
//   batch {step, input, offset, length, last} + bytes   ──►   as many at a time as kUnderWay
//                                        ◄──  took {}
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/data/batch_ring.h"

namespace pipeshard {

// To one host. Whoever owns the ring must not reuse a place before all ranks have done its step: then it was
// sent.
class BatchSender {
 public:
  using Send = std::function<void(nlohmann::json batch, std::span<const std::byte> bytes)>;

  // The ring outlives this; `inputs`: how many it has places for.
  BatchSender(const BatchRing& ring, size_t inputs, int64_t steps_done)
      : ring_(ring), inputs_(inputs), step_(steps_done + 1) {}

  // Pieces of what is in the ring and was not sent, as far as not too many are under way.
  void sendMore(const Send& send);
  void acknowledge() { --under_way_; }

 private:
  const BatchRing& ring_;
  size_t inputs_;
  int64_t step_;  // that is being sent, or waited for
  size_t input_ = 0, offset_ = 0;
  int under_way_ = 0;
};

// On a host: the ring that its workers inherit.
class BatchReceiver {
 public:
  // Error(kOutOfMemory).
  BatchReceiver(const std::vector<ProgramInput>& inputs, int64_t steps_done)
      : ring_(BatchRing::create(inputs, steps_done)), inputs_(inputs.size()) {}

  int descriptor() const { return ring_.descriptor(); }
  // Error(kInternal) for a piece that does not fit.
  void take(const nlohmann::json& batch, std::span<const std::byte> bytes) const;

 private:
  BatchRing ring_;
  size_t inputs_;
};

}  // namespace pipeshard
