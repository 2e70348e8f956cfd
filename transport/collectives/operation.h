// What communicators have in common below their interface: which operation a message belongs to, and what a
// wait is for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "ir/base/data_type.h"
#include "transport/collectives/communicator.h"

namespace pipeshard {

// Travels with every message, so that ranks that disagree about what they are doing find out.
enum class Operation : uint32_t {
  kSend = 0,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kBarrier
};

std::string_view operationName(Operation operation);

// Point-to-point messages and collectives do not wait for each other: messages match in the order posted,
// each kind for itself.
enum class Channel : uint32_t { kPointToPoint = 0, kCollective = 1 };
inline constexpr size_t kChannels = 2;

// What a wait is for: makes the message when it fails. `members` are the ranks whose death ends it (at least
// `peer`).
struct Waiting {
  Operation operation;
  std::string_view action;  // "waits for", "sends to"
  RankId peer;
  size_t bytes;
  std::span<const RankId> members;
};

// What Communicator::waited() is made of: a transport reports how long it was blocked for the beginning of
// each message, and an operation says whether it still counts.
class WaitedTime {
 public:
  void beginOperation() {
    waited_ = {};
    counts_ = true;
  }
  // Every peer has come: what follows is transfer.
  void everybodyCame() { counts_ = false; }
  // Calls wait() unless there is no need to.
  template <typename Ready, typename Wait>
  void during(Ready&& ready, Wait&& wait) {
    if (ready()) return;
    const auto start = std::chrono::steady_clock::now();
    wait();
    if (counts_) waited_ += std::chrono::steady_clock::now() - start;
  }
  std::chrono::nanoseconds get() const { return waited_; }

 private:
  std::chrono::nanoseconds waited_{};
  bool counts_ = true;
};

// Error(kInternal) unless the group is ascending ranks of 0..size-1 that contain `rank`, and the type has a
// size in bytes.
void checkGroup(RankId rank, int size, const Group& group, DataType type);
// Error(kInternal) unless `root` is an index into the group.
void checkRoot(RankId rank, const Group& group, int root);

}  // namespace pipeshard
