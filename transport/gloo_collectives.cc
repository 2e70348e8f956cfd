#include "transport/gloo_collectives.h"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "transport/parts.h"
#include "transport/reduce.h"

namespace pipeshard::mesh {
namespace {

constexpr size_t kSmallBytes = 8 << 10;
// One member's part of a segment: long enough to hide the answer that a message waits for, short enough for the cache.
constexpr size_t kPartBytes = 1 << 20;

// What all collectives share: who is who, and the messages under way.
class Round {
 public:
  Round(Mesh& mesh, const Group& group, Operation operation, DataType type)
      : mesh_(mesh), group_(group), operation_(operation), type_(type), element_bytes_(dataTypeSize(type)) {
    self_ = static_cast<size_t>(std::find(group.begin(), group.end(), mesh.rank()) - group.begin());
  }

  size_t size() const { return group_.size(); }
  size_t self() const { return self_; }
  size_t bytes(size_t count) const { return count * element_bytes_; }

  void post(size_t member, std::span<const std::byte> data) {
    const Ticket ticket = mesh_.post(Channel::kCollective, group_[member], operation_, data);
    if (!ticket.copied) sent_.push_back({ticket, data.size()});
  }
  void postToOthers(std::span<const std::byte> data) {
    forOthers([&](size_t member) { post(member, data); });
  }
  // Receives from all others at once: destination(member) is where.
  template <typename Destination>
  void takeFromOthers(Destination&& destination) {
    std::vector<Incoming> incoming;
    incoming.reserve(size());
    forOthers([&](size_t member) { incoming.push_back(take(member, destination(member))); });
    for (Incoming& message : incoming) mesh_.finish(message);
  }
  void receive(size_t member, std::span<std::byte> to) {
    Incoming incoming = take(member, to);
    mesh_.finish(incoming);
  }
  // All members but this one; each member starts with its own neighbour, so that they do not queue at the same one.
  template <typename Function>
  void forOthers(Function&& function) {
    for (size_t step = 1; step < size(); ++step) function((self_ + step) % size());
  }
  // output := inputs of all members in group order; mine is at `own`.
  void reduce(Reduction reduction, const std::byte* own, std::byte* output, size_t count);
  // Until every posted byte may be overwritten.
  void settle() {
    for (const Sent& sent : sent_) {
      mesh_.awaitCompleted(sent.ticket, {operation_, "is being read by", sent.ticket.peer, sent.bytes, group_});
    }
    sent_.clear();
  }

 private:
  struct Sent {
    Ticket ticket;
    size_t bytes;
  };

  Incoming take(size_t member, std::span<std::byte> to) {
    return mesh_.take(Channel::kCollective, to, {operation_, "waits for", group_[member], to.size(), group_});
  }

  Mesh& mesh_;
  const Group& group_;
  Operation operation_;
  DataType type_;
  size_t element_bytes_;
  size_t self_;
  std::vector<Sent> sent_;
  std::vector<std::byte> scratch_;  // the others' inputs
};

void Round::reduce(Reduction reduction, const std::byte* own, std::byte* output, size_t count) {
  const size_t stride = (bytes(count) + 63) / 64 * 64;
  if (scratch_.size() < stride * size()) scratch_.resize(stride * size());
  takeFromOthers([&](size_t member) { return std::span{scratch_.data() + member * stride, bytes(count)}; });
  std::vector<const std::byte*> inputs(size());
  for (size_t member = 0; member < size(); ++member) inputs[member] = member == self_ ? own : scratch_.data() + member * stride;
  reduceInOrder(type_, reduction, inputs, output, count);
}

void copyUnlessSame(void* output, const void* input, size_t bytes) {
  if (output != input && bytes > 0) std::memmove(output, input, bytes);
}

void allReduceSmall(Round& round, Reduction reduction, const std::byte* input, std::byte* output, size_t count) {
  round.postToOthers({input, round.bytes(count)});
  // What has not left yet may lie in the output.
  std::vector<std::byte> result(round.bytes(count));
  round.reduce(reduction, input, result.data(), count);
  round.settle();
  copyUnlessSame(output, result.data(), result.size());
}

void allReduceSegments(Round& round, Reduction reduction, const std::byte* input, std::byte* output, size_t count, size_t element_bytes) {
  const size_t length = std::max<size_t>(1, kPartBytes / element_bytes) * round.size();
  const size_t segments = (count + length - 1) / length;
  const auto part = [&](size_t segment, size_t member) {
    const size_t begin = segment * length;
    const Range range = partOf(std::min(length, count - begin), round.size(), member, element_bytes);
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
    round.postToOthers({output + round.bytes(own.begin), round.bytes(own.count())});
    if (segment > 0) gather(segment - 1);
  }
  gather(segments - 1);
}

}  // namespace

void allReduce(Mesh& mesh, const Group& group, DataType type, Reduction reduction, const void* input, void* output, size_t count) {
  checkReducible(type);
  Round round(mesh, group, Operation::kAllReduce, type);
  const auto* from = static_cast<const std::byte*>(input);
  auto* to = static_cast<std::byte*>(output);
  if (group.size() == 1) return copyUnlessSame(output, input, round.bytes(count));
  if (round.bytes(count) <= kSmallBytes) {
    allReduceSmall(round, reduction, from, to, count);
  } else {
    allReduceSegments(round, reduction, from, to, count, dataTypeSize(type));
  }
  round.settle();
}

void allGather(Mesh& mesh, const Group& group, DataType type, const void* input, void* output, size_t count) {
  Round round(mesh, group, Operation::kAllGather, type);
  const size_t block = round.bytes(count);
  auto* to = static_cast<std::byte*>(output);
  round.postToOthers({static_cast<const std::byte*>(input), block});
  copyUnlessSame(to + round.self() * block, input, block);
  round.takeFromOthers([&](size_t member) { return std::span{to + member * block, block}; });
  round.settle();
}

void reduceScatter(Mesh& mesh, const Group& group, DataType type, Reduction reduction, const void* input, void* output, size_t count) {
  checkReducible(type);
  Round round(mesh, group, Operation::kReduceScatter, type);
  const size_t block = round.bytes(count);
  const auto* from = static_cast<const std::byte*>(input);
  auto* to = static_cast<std::byte*>(output);
  const size_t length = kPartBytes / dataTypeSize(type);
  for (size_t begin = 0; begin < count; begin += length) {
    const size_t bytes = round.bytes(std::min(length, count - begin));
    round.forOthers([&](size_t member) { round.post(member, {from + member * block + round.bytes(begin), bytes}); });
  }
  for (size_t begin = 0; begin < count; begin += length) {
    const std::byte* own = from + round.self() * block + round.bytes(begin);
    round.reduce(reduction, own, to + round.bytes(begin), std::min(length, count - begin));
  }
  round.settle();
}

void allToAll(Mesh& mesh, const Group& group, DataType type, const void* input, void* output, size_t count) {
  Round round(mesh, group, Operation::kAllToAll, type);
  const size_t block = round.bytes(count);
  const auto* from = static_cast<const std::byte*>(input);
  auto* to = static_cast<std::byte*>(output);
  round.forOthers([&](size_t member) { round.post(member, {from + member * block, block}); });
  copyUnlessSame(to + round.self() * block, from + round.self() * block, block);
  round.takeFromOthers([&](size_t member) { return std::span{to + member * block, block}; });
  round.settle();
}

void broadcast(Mesh& mesh, const Group& group, DataType type, int root, void* data, size_t count) {
  Round round(mesh, group, Operation::kBroadcast, type);
  const std::span<std::byte> bytes{static_cast<std::byte*>(data), round.bytes(count)};
  if (round.self() == static_cast<size_t>(root)) {
    round.postToOthers(bytes);
    round.settle();
  } else {
    round.receive(static_cast<size_t>(root), bytes);
  }
}

// Dissemination: after round k everybody knows of the 2^(k+1) members before it.
void barrier(Mesh& mesh, const Group& group) {
  Round round(mesh, group, Operation::kBarrier, DataType::kUint8);
  for (size_t distance = 1; distance < round.size(); distance *= 2) {
    round.post((round.self() + distance) % round.size(), {});
    round.receive((round.self() + round.size() - distance) % round.size(), {});
  }
  round.settle();
}

}  // namespace pipeshard::mesh
