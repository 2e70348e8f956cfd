// Which addresses are in use when: the question that a placement of live blocks asks for every block.
#pragma once

#include <cstdint>
#include <span>
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
  struct Span {  // a node and the leaves [first, last) under it
    size_t node = 0;
    size_t first = 0;
    size_t last = 0;
  };
  // Calls visit(node, inside) for each node on the way to the leaves [begin, end): `inside` where it lies
  // within.
  template <class Visit>
  void walk(int64_t begin, int64_t end, const Visit& visit);

  std::vector<int64_t> moments_;
  std::vector<Node> nodes_;  // a heap: the children of n are 2n+1 and 2n+2
  std::vector<AddressRange> scratch_;
  std::vector<Span> pending_;
};

}  // namespace pipeshard
