// The part of collectives that is alike over every transport. A Round is one collective under way, seen by
// one member; a transport derives its own from RoundMembers and adds how bytes move:
//
//   // sends `data` to that member; it stays unchanged until settle() returns
//   void post(size_t member, std::span<const std::byte> data);
//   // takes what all others posted to me; destination(member) is the span to fill
//   void takeFromOthers(Destination&& destination);
//   // takes what that member posted to me
//   void receive(size_t member, std::span<std::byte> to);
//   // output := what all posted to me and `own`, reduced in group order
//   void reduce(Reduction, const std::byte* own, std::byte* output, size_t count);
//   // waits until every posted byte may be overwritten
//   void settle();
//
// Example: gatherBlocks is a whole all-gather: everybody posts its block to all others and takes theirs.
// Members are indices into the group; counts are elements.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "ir/base/data_type.h"
#include "transport/collectives/communicator.h"
#include "transport/collectives/parts.h"

namespace pipeshard {

class RoundMembers {
 public:
  RoundMembers(const Group& group, RankId rank, DataType type)
      : group_(group),
        element_bytes_(dataTypeSize(type)),
        self_(std::find(group.begin(), group.end(), rank) - group.begin()) {}

  size_t size() const { return group_.size(); }
  size_t self() const { return self_; }
  size_t elementBytes() const { return element_bytes_; }
  size_t bytes(size_t count) const { return count * element_bytes_; }
  // All members but this one; each member starts with its own neighbour, so that they do not queue at the
  // same one.
  template <typename Function>
  void forOthers(Function&& function) {
    for (size_t step = 1; step < size(); ++step) function((self_ + step) % size());
  }

 protected:
  const Group& group_;
  size_t element_bytes_;
  size_t self_;
};

inline void copyUnlessSame(void* output, const void* input, size_t bytes) {
  if (output != input && bytes > 0) std::memmove(output, input, bytes);
}

template <typename Round>
void postToOthers(Round& round, std::span<const std::byte> data) {
  round.forOthers([&](size_t member) { round.post(member, data); });
}

// All-reduce: the members reduce a part of each segment each, and gather the parts while the next segment is
// under way. `part_bytes`: of one member's part.
template <typename Round>
void reduceSegments(Round& round, Reduction reduction, size_t part_bytes, const std::byte* input,
                    std::byte* output, size_t count) {
  const size_t length = std::max<size_t>(1, part_bytes / round.elementBytes()) * round.size();
  const size_t segments = (count + length - 1) / length;
  const auto part = [&](size_t segment, size_t member) {
    const size_t begin = segment * length;
    const Range range = partOf(std::min(length, count - begin), round.size(), member, round.elementBytes());
    return Range{begin + range.begin, begin + range.end};
  };
  const auto announce = [&](size_t segment) {
    round.forOthers([&](size_t member) {
      const Range range = part(segment, member);
      round.post(member, {input + round.bytes(range.begin), round.bytes(range.count())});
    });
  };
  const auto gather = [&](size_t segment) {
    round.takeFromOthers([&](size_t member) {
      const Range range = part(segment, member);
      return std::span{output + round.bytes(range.begin), round.bytes(range.count())};
    });
  };
  announce(0);
  for (size_t segment = 0; segment < segments; ++segment) {
    if (segment + 1 < segments) announce(segment + 1);
    const Range own = part(segment, round.self());
    round.reduce(reduction, input + round.bytes(own.begin), output + round.bytes(own.begin), own.count());
    postToOthers(round, {output + round.bytes(own.begin), round.bytes(own.count())});
    if (segment > 0) gather(segment - 1);
  }
  gather(segments - 1);
}

// All-reduce of `count` elements: of more than `small_bytes` in segments, else by small(), which reduces them
// as suits the transport.
template <typename Round, typename Small>
void reduceEverywhere(Round& round, Reduction reduction, size_t small_bytes, size_t part_bytes,
                      const void* input, void* output, size_t count, Small&& small) {
  const auto* from = static_cast<const std::byte*>(input);
  auto* to = static_cast<std::byte*>(output);
  if (round.size() == 1) return copyUnlessSame(to, from, round.bytes(count));
  if (round.bytes(count) <= small_bytes) {
    small(from, to);
  } else {
    reduceSegments(round, reduction, part_bytes, from, to, count);
  }
  round.settle();
}

// All-gather of blocks of `count` elements.
template <typename Round>
void gatherBlocks(Round& round, const void* input, void* output, size_t count) {
  const size_t block = round.bytes(count);
  auto* to = static_cast<std::byte*>(output);
  postToOthers(round, {static_cast<const std::byte*>(input), block});
  copyUnlessSame(to + round.self() * block, input, block);
  round.takeFromOthers([&](size_t member) { return std::span{to + member * block, block}; });
  round.settle();
}

// All-to-all of blocks of `count` elements.
template <typename Round>
void exchangeBlocks(Round& round, const void* input, void* output, size_t count) {
  const size_t block = round.bytes(count);
  const auto* from = static_cast<const std::byte*>(input);
  auto* to = static_cast<std::byte*>(output);
  round.forOthers([&](size_t member) { round.post(member, {from + member * block, block}); });
  copyUnlessSame(to + round.self() * block, from + round.self() * block, block);
  round.takeFromOthers([&](size_t member) { return std::span{to + member * block, block}; });
  round.settle();
}

// Broadcast of `count` elements by the member `root`.
template <typename Round>
void spreadBlock(Round& round, size_t root, void* data, size_t count) {
  const std::span<std::byte> bytes{static_cast<std::byte*>(data), round.bytes(count)};
  if (round.self() == root) {
    postToOthers(round, bytes);
    round.settle();
  } else {
    round.receive(root, bytes);
  }
}

// Barrier, by dissemination: after turn k everybody knows of the 2^(k+1) members before it.
template <typename Round>
void meet(Round& round) {
  for (size_t distance = 1; distance < round.size(); distance *= 2) {
    round.post((round.self() + distance) % round.size(), {});
    round.receive((round.self() + round.size() - distance) % round.size(), {});
  }
  round.settle();
}

}  // namespace pipeshard
