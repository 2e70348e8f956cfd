#include "transport/shared_collectives.h"

#include <algorithm>
#include <cstring>

#include "transport/parts.h"
#include "transport/reduce.h"

namespace pipeshard::shm {
namespace {

// Staging what is small saves waiting for the readers, which costs more than the copy.
constexpr size_t kSmallBytes = 8 << 10;
// One member's part of a segment: stays in the second-level cache between being reduced and being copied by the others.
constexpr size_t kPartBytes = 256 << 10;

// What all collectives share: who is who, and the sends under way.
class Round {
 public:
  Round(Endpoint& endpoint, const Group& group, Operation operation, DataType type)
      : endpoint_(endpoint), group_(group), operation_(operation), type_(type), element_bytes_(dataTypeSize(type)) {
    self_ = static_cast<size_t>(std::find(group.begin(), group.end(), endpoint.rank()) - group.begin());
  }

  size_t size() const { return group_.size(); }
  size_t self() const { return self_; }
  size_t bytes(size_t count) const { return count * element_bytes_; }

  void post(size_t member, std::span<const std::byte> data) {
    const bool staged = data.size() <= kSmallBytes;
    tickets_.push_back({endpoint_.post(Channel::kCollective, group_[member], operation_, data, staged), data.size()});
  }
  void postToOthers(std::span<const std::byte> data) {
    forOthers([&](size_t member) { post(member, data); });
  }
  IncomingMessage take(size_t member, size_t bytes) {
    return IncomingMessage(endpoint_, Channel::kCollective, group_[member], operation_, bytes, group_);
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
    for (const Sent& sent : tickets_) {
      endpoint_.await({operation_, "is being read by", sent.ticket.peer, sent.bytes, group_},
                      [&] { return endpoint_.settled(sent.ticket); });
    }
    tickets_.clear();
  }

 private:
  struct Sent {
    Ticket ticket;
    size_t bytes;
  };

  Endpoint& endpoint_;
  const Group& group_;
  Operation operation_;
  DataType type_;
  size_t element_bytes_;
  size_t self_;
  std::vector<Sent> tickets_;
};

void Round::reduce(Reduction reduction, const std::byte* own, std::byte* output, size_t count) {
  std::vector<IncomingMessage> messages;
  messages.reserve(size());
  for (size_t member = 0; member < size(); ++member) {
    if (member != self_) messages.push_back(take(member, bytes(count)));
  }
  std::vector<const std::byte*> inputs(size());
  const size_t total = bytes(count);
  for (size_t begin = 0; begin < total; begin += kSlotBytes) {
    const size_t block = std::min(kSlotBytes, total - begin);
    for (size_t member = 0, next = 0; member < size(); ++member) {
      inputs[member] = member == self_ ? own + begin : messages[next++].view().data();
    }
    reduceInOrder(type_, reduction, inputs, output + begin, block / element_bytes_);
    for (IncomingMessage& message : messages) message.advance(block);
    endpoint_.progress();
  }
  for (IncomingMessage& message : messages) message.finish();
}

void copyUnlessSame(void* output, const void* input, size_t bytes) {
  if (output != input && bytes > 0) std::memmove(output, input, bytes);
}

void allReduceSmall(Round& round, Reduction reduction, const std::byte* input, std::byte* output, size_t count) {
  round.postToOthers({input, round.bytes(count)});
  // Staged, so everybody else reads a copy; but not before it has left the queue may an output in place overwrite it.
  round.settle();
  round.reduce(reduction, input, output, count);
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
    round.forOthers([&](size_t member) {
      const Range range = part(segment, member);
      round.take(member, round.bytes(range.count())).copyTo(output + round.bytes(range.begin));
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

void allReduce(Endpoint& endpoint, const Group& group, DataType type, Reduction reduction, const void* input, void* output, size_t count) {
  checkReducible(type);
  Round round(endpoint, group, Operation::kAllReduce, type);
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

void allGather(Endpoint& endpoint, const Group& group, DataType type, const void* input, void* output, size_t count) {
  Round round(endpoint, group, Operation::kAllGather, type);
  const size_t block = round.bytes(count);
  auto* to = static_cast<std::byte*>(output);
  round.postToOthers({static_cast<const std::byte*>(input), block});
  copyUnlessSame(to + round.self() * block, input, block);
  round.forOthers([&](size_t member) { round.take(member, block).copyTo(to + member * block); });
  round.settle();
}

void reduceScatter(Endpoint& endpoint, const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                   size_t count) {
  checkReducible(type);
  Round round(endpoint, group, Operation::kReduceScatter, type);
  const size_t block = round.bytes(count);
  const auto* from = static_cast<const std::byte*>(input);
  round.forOthers([&](size_t member) { round.post(member, {from + member * block, block}); });
  round.reduce(reduction, from + round.self() * block, static_cast<std::byte*>(output), count);
  round.settle();
}

void allToAll(Endpoint& endpoint, const Group& group, DataType type, const void* input, void* output, size_t count) {
  Round round(endpoint, group, Operation::kAllToAll, type);
  const size_t block = round.bytes(count);
  const auto* from = static_cast<const std::byte*>(input);
  auto* to = static_cast<std::byte*>(output);
  round.forOthers([&](size_t member) { round.post(member, {from + member * block, block}); });
  copyUnlessSame(to + round.self() * block, from + round.self() * block, block);
  round.forOthers([&](size_t member) { round.take(member, block).copyTo(to + member * block); });
  round.settle();
}

void broadcast(Endpoint& endpoint, const Group& group, DataType type, int root, void* data, size_t count) {
  Round round(endpoint, group, Operation::kBroadcast, type);
  auto* bytes = static_cast<std::byte*>(data);
  if (round.self() == static_cast<size_t>(root)) {
    round.postToOthers({bytes, round.bytes(count)});
    round.settle();
  } else {
    round.take(static_cast<size_t>(root), round.bytes(count)).copyTo(bytes);
  }
}

// Dissemination: after round k everybody knows of the 2^(k+1) members before it.
void barrier(Endpoint& endpoint, const Group& group) {
  Round round(endpoint, group, Operation::kBarrier, DataType::kUint8);
  for (size_t distance = 1; distance < round.size(); distance *= 2) {
    round.post((round.self() + distance) % round.size(), {});
    round.take((round.self() + round.size() - distance) % round.size(), 0).copyTo(nullptr);
  }
  round.settle();
}

}  // namespace pipeshard::shm
