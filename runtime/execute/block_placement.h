// Addresses for blocks of memory that are needed for a while. Sizes and lifetimes are all known beforehand.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "runtime/device/aligned_memory.h"

namespace pipeshard {

// `bytes` that are live in the half-open interval [begin, end) of some order (instructions, nodes).
struct LiveBlock {
  int64_t bytes = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

struct Placement {
  std::vector<int64_t> offsets;  // by block; multiples of the alignment
  int64_t total_bytes = 0;
};

// Greedy, tried with best fit and the earliest block first and, unless that reaches the lower bound (as
// chains do, where the other order is slow) or, of very many blocks, nearly does, with first fit and the
// largest block first; the smaller result is taken. Deterministic. Blocks of 0 bytes get offset 0. Never
// below liveLowerBound, which no placement can beat. `alignment`: bytes, a power of two.
Placement placeBlocks(std::span<const LiveBlock> blocks, int64_t alignment = kMemoryAlignment);

// With the earliest block first alone.
Placement placeEarliestFirst(std::span<const LiveBlock> blocks, int64_t alignment = kMemoryAlignment);

// The moments of all [start + begin, start + end).
struct Times {
  static constexpr std::array<int64_t, 1> kOnce = {0};
  int64_t begin = 0;
  int64_t end = 0;
  std::span<const int64_t> starts = kOnce;
};

// A block that is live again and again, always at the same address.
struct RepeatedBlock {
  int64_t bytes = 0;
  Times times;
};

// First fit, with the largest block first. Unless that reaches the bound, it is tried again up to `rounds`
// times, each time with those blocks first that lay above the bound the last time; and all of that with the
// earliest, and with the longest block first. The best result is taken.
Placement placeFirstFit(std::span<const RepeatedBlock> blocks, int64_t bound, int rounds,
                        int64_t alignment = kMemoryAlignment);

// Throws Error(kInternal) naming two blocks that are live together and overlap, or a block that is misaligned
// or outside.
void verifyPlacement(std::span<const LiveBlock> blocks, const Placement& placement,
                     int64_t alignment = kMemoryAlignment);

// The largest sum of (aligned) bytes that are live at one moment.
int64_t liveLowerBound(std::span<const LiveBlock> blocks, int64_t alignment = kMemoryAlignment);

// `bytes` up to the next multiple of `alignment`.
inline int64_t alignedBytes(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Addresses [begin, end).
struct AddressRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Which addresses are in use when: the question that a placement of live blocks asks for every block.
//
// Grows by one block at a time. A tree over time halves it down to single moments; each node keeps two sets
// of addresses: those in use throughout the node's time, and those in use at some moment of it. What is in
// use at some moment of [begin, end) is then the union of 2 log(moments) sets. A set holds ranges that do not
// touch: blocks that lie side by side are one range, so sets stay small however many blocks there are (in a
// training step, activations are stacked).
class OccupiedMemory {
 public:
  // `moments`: ascending, without duplicates; begins and ends of all blocks that will be asked for are among
  // them.
  explicit OccupiedMemory(std::vector<int64_t> moments);

  // The first address of the lowest gap of at least `bytes` that is free at all these times, or behind
  // everything that is in use then.
  int64_t firstFit(int64_t bytes, const Times& times);

  void occupy(AddressRange addresses, const Times& times);

 private:
  struct Node {
    std::vector<AddressRange> throughout;
    std::vector<AddressRange> sometime;
  };
  struct Leaves {  // [first, last)
    size_t first = 0;
    size_t last = 0;
  };
  // Calls visit(node, inside) for each node on the way to the leaves of these times: `inside` where it lies
  // within.
  template <class Visit>
  void walk(const Times& times, const Visit& visit);
  template <class Visit>
  void descend(size_t node, Leaves under, Leaves asked, const Visit& visit);

  std::vector<int64_t> moments_;
  std::vector<Node> nodes_;           // a heap: the children of n are 2n+1 and 2n+2
  std::vector<AddressRange> used_;    // at some moment that firstFit is asked for
  std::vector<AddressRange> united_;  // of use to it
};

// Best fit for blocks that come in the order in which they begin: what is in use while such a block lives is
// what is in use when it begins. So one set of gaps is kept, that of the last begin.
class MemoryInOrder {
 public:
  // Occupies the smallest gap of at least `bytes`, the lowest of equal ones, or what is behind everything
  // that is in use, and returns its address. `bytes` > 0, begin < end.
  int64_t place(int64_t bytes, int64_t begin, int64_t end);

 private:
  void release(int64_t address);

  std::map<int64_t, int64_t> used_;             // by begin: the end
  std::set<std::pair<int64_t, int64_t>> gaps_;  // sizes and begins, below the highest that is in use
  using End = std::pair<int64_t, int64_t>;      // a moment, and the address that is free from then on
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
};

}  // namespace pipeshard
