// The control segment: what lies where, and who writes what. Every process of the job maps it once, whole.
//
//   offset 0           ControlHeader                    written by SharedSegments::create, then constant
//   ranksOffset()      RankState[size]
//   mailboxesOffset()  Mailbox[2][size][size]           indexed [channel][source][destination]
//   slotsOffset()      kSlots * kSlotBytes per mailbox  in the same order; page-aligned
//   laneBytes()        the same once more (its header is not used): the second lane
//
// A lane is what one communicator of each rank works on; the two lanes of a rank belong to two threads and
// share nothing but its arena.
//
// A mailbox carries the messages of one ordered pair on one channel, in order. Its sender writes `posted` and
// `filled`, its receiver `completed` and `released`; all four only grow.
//   message m (0, 1, ...)  descriptors[m % kDescriptors], valid for completed <= m < posted;
//                          so posted - completed <= kDescriptors
//   route kArena           the bytes lie in the sender's arena at `offset`, unchanged until m is completed
//   route kStaged          the bytes come through the slots: ceil(bytes / kSlotBytes) slots per message, in
//                          message order; slot s is slots[s % kSlots], valid for released <= s < filled;
//                          so filled - released <= kSlots
//
// Memory order: data first, then the counter with release; the other side reads the counter with acquire,
// then the data. This holds in both directions (a slot is reused only after its release has been acquired),
// so no byte is ever written while another process reads it.
//
// Sleeping: each rank has one doorbell (a futex word). Whoever changes a counter that rank r may wait for
// adds one to r's doorbell and, if r's `sleeping` is not zero, wakes it. A waiter adds one to `sleeping`,
// reads the doorbell, looks at its condition, and sleeps only while the doorbell still has the value that it
// read. All of these are sequentially consistent: either the waiter's look comes after the change, or the
// change's ring finds the doorbell read and `sleeping` counted. Two threads of a rank may sleep at a time
// (transport/shared/early_receiver.h): a ring wakes both.
//
// A mailbox's receiving side (`completed`, `released`) is one thread's at a time: the rank's own, or, from a
// posted receive until it is withdrawn, its early receiver's. The mutex by which it changes hands orders what
// they do to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/collectives/operation.h"

namespace pipeshard::shm {

inline constexpr uint64_t kMagic = 0x3130544d48535350;  // "PSSHMT01" in memory
inline constexpr uint32_t kLayoutVersion = 2;
inline constexpr int kMaxRanks = 256;
inline constexpr size_t kPage = 4096;
inline constexpr size_t kLine = 128;  // two cache lines: the adjacent-line prefetcher pairs them
inline constexpr size_t kSlotBytes = 64 << 10;
inline constexpr size_t kSlots = 8;
inline constexpr size_t kDescriptors = 128;

enum class Lane : uint32_t { kFirst = 0, kSecond = 1 };
inline constexpr size_t kLanes = 2;

enum class Route : uint32_t { kStaged = 0, kArena = 1 };

using pipeshard::Channel;
using pipeshard::kChannels;
using pipeshard::Operation;  // stored as uint32_t

enum class Life : uint32_t { kAbsent = 0, kOpen = 1, kClosed = 2 };

struct ControlHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t size;
  uint64_t total_bytes;
};

struct alignas(kLine) RankState {
  std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> sleeping;             // how many of its threads
  alignas(kLine) std::atomic<uint32_t> dead;  // set by the launcher
  std::atomic<uint32_t> life;                 // Life; written by the rank
  std::atomic<uint64_t> arena_bytes;          // written by the rank before the first message out of its arena
  // arena bytes that the rank is going to touch, not yet part of the used memory
  std::atomic<uint64_t> unpopulated;
};

struct Descriptor {
  uint64_t bytes;
  uint64_t offset;
  Route route;
  Operation operation;
};

struct alignas(kLine) Mailbox {
  std::atomic<uint64_t> posted;
  std::atomic<uint64_t> filled;
  alignas(kLine) std::atomic<uint64_t> completed;
  std::atomic<uint64_t> released;
  alignas(kLine) Descriptor descriptors[kDescriptors];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

constexpr size_t roundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
constexpr size_t ranksOffset() { return kLine; }
constexpr size_t mailboxesOffset(size_t size) { return ranksOffset() + size * sizeof(RankState); }
constexpr size_t slotsOffset(size_t size) {
  return roundUp(mailboxesOffset(size) + kChannels * size * size * sizeof(Mailbox), kPage);
}
constexpr size_t laneBytes(size_t size) {
  return slotsOffset(size) + kChannels * size * size * kSlots * kSlotBytes;
}
constexpr size_t controlBytes(size_t size) { return kLanes * laneBytes(size); }
static_assert(kSlotBytes % kPage == 0);  // so that the second lane is page-aligned

// Typed access to a mapped control segment; does not own it.
class ControlView {
 public:
  ControlView() = default;
  ControlView(std::byte* base, int size, Lane lane = Lane::kFirst)
      : base_(base + static_cast<size_t>(lane) * laneBytes(size)), size_(size) {}

  int size() const { return size_; }
  RankState& rank(RankId rank) const {
    return reinterpret_cast<RankState*>(base_ + ranksOffset())[rank.index()];
  }
  Mailbox& mailbox(Channel channel, RankId source, RankId destination) const {
    return reinterpret_cast<Mailbox*>(base_ + mailboxesOffset(size_))[index(channel, source, destination)];
  }
  std::byte* slot(Channel channel, RankId source, RankId destination, uint64_t number) const {
    return base_ + slotsOffset(size_) +
           (index(channel, source, destination) * kSlots + number % kSlots) * kSlotBytes;
  }

 private:
  size_t index(Channel channel, RankId source, RankId destination) const {
    return (static_cast<size_t>(channel) * size_ + source.index()) * size_ + destination.index();
  }

  std::byte* base_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pipeshard::shm
