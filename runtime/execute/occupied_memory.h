// Which addresses are in use when: the question that a placement of live blocks asks for every block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace pipeshard {

// Addresses [begin, end).
struct AddressRange {
  int64_t begin = 0;
  int64_t end = 0;
};

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

  // The first address of the smallest gap of at least `bytes` that is free throughout [begin, end); the
  // lowest of equal ones; behind everything that is in use then, where no gap is large enough.
  int64_t bestFit(int64_t bytes, int64_t begin, int64_t end);

  void occupy(AddressRange addresses, int64_t begin, int64_t end);

 private:
  struct Node {
    std::vector<AddressRange> throughout;
    std::vector<AddressRange> sometime;
  };
  struct Leaves {  // [first, last)
    size_t first = 0;
    size_t last = 0;
  };
  // Calls visit(node, inside) for each node on the way to the leaves of [begin, end): `inside` where it lies
  // within.
  template <class Visit>
  void walk(int64_t begin, int64_t end, const Visit& visit);
  template <class Visit>
  void descend(size_t node, Leaves under, Leaves asked, const Visit& visit);

  std::vector<int64_t> moments_;
  std::vector<Node> nodes_;           // a heap: the children of n are 2n+1 and 2n+2
  std::vector<AddressRange> used_;    // at some moment that bestFit is asked for
  std::vector<AddressRange> united_;  // of use to it
};

// The same for blocks that come in the order in which they begin: what is in use while such a block lives is
// what is in use when it begins. So one set of gaps is kept, that of the last begin.
class MemoryInOrder {
 public:
  // Occupies the gap that bestFit finds, and returns its address. `bytes` > 0, begin < end.
  int64_t place(int64_t bytes, int64_t begin, int64_t end);

 private:
  void release(int64_t address);

  std::map<int64_t, int64_t> used_;             // by begin: the end
  std::set<std::pair<int64_t, int64_t>> gaps_;  // sizes and begins, below the highest that is in use
  using End = std::pair<int64_t, int64_t>;      // a moment, and the address that is free from then on
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
};

}  // namespace pipeshard
