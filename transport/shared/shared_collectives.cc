#include "transport/shared/shared_collectives.h"

#include <algorithm>

#include "transport/collectives/reduce.h"
#include "transport/collectives/rounds.h"

namespace pipeshard::shm {
namespace {

// Staging what is small saves waiting for the readers, which costs more than the copy.
constexpr size_t kSmallBytes = 8 << 10;
// One member's part of a segment: stays in the second-level cache between being reduced and being copied by
// the others.
constexpr size_t kPartBytes = 256 << 10;

// What all collectives share: who is who, and the sends under way.
class Round : public RoundMembers {
 public:
  Round(Endpoint& endpoint, const Group& group, Operation operation, DataType type)
      : RoundMembers(group, endpoint.rank(), type), endpoint_(endpoint), operation_(operation), type_(type) {
    endpoint.waitedTime().beginOperation();
  }

  void post(size_t member, std::span<const std::byte> data) {
    const bool staged = data.size() <= kSmallBytes;
    tickets_.push_back(
        {endpoint_.post(Channel::kCollective, group_[member], operation_, data, staged), data.size()});
  }
  IncomingMessage take(size_t member, size_t bytes) {
    IncomingMessage message(endpoint_, Channel::kCollective, group_[member], operation_, bytes, group_);
    // the first ones are of different members
    if (++taken_ + 1 == size()) endpoint_.waitedTime().everybodyCame();
    return message;
  }
  void receive(size_t member, std::span<std::byte> to) { take(member, to.size()).copyTo(to.data()); }
  template <typename Destination>
  void takeFromOthers(Destination&& destination) {
    forOthers([&](size_t member) { receive(member, destination(member)); });
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
  Operation operation_;
  DataType type_;
  std::vector<Sent> tickets_;
  size_t taken_ = 0;
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

void allReduceSmall(Round& round, Reduction reduction, const std::byte* input, std::byte* output,
                    size_t count) {
  postToOthers(round, {input, round.bytes(count)});
  // Staged, so everybody else reads a copy; but not before it has left the queue may an output in place
  // overwrite it.
  round.settle();
  round.reduce(reduction, input, output, count);
}

}  // namespace

void allReduce(Endpoint& endpoint, const Group& group, DataType type, Reduction reduction, const void* input,
               void* output, size_t count) {
  checkReducible(type);
  Round round(endpoint, group, Operation::kAllReduce, type);
  reduceEverywhere(
      round, reduction, kSmallBytes, kPartBytes, input, output, count,
      [&](const std::byte* from, std::byte* to) { allReduceSmall(round, reduction, from, to, count); });
}

void allGather(Endpoint& endpoint, const Group& group, DataType type, const void* input, void* output,
               size_t count) {
  Round round(endpoint, group, Operation::kAllGather, type);
  gatherBlocks(round, input, output, count);
}

void reduceScatter(Endpoint& endpoint, const Group& group, DataType type, Reduction reduction,
                   const void* input, void* output, size_t count) {
  checkReducible(type);
  Round round(endpoint, group, Operation::kReduceScatter, type);
  const size_t block = round.bytes(count);
  const auto* from = static_cast<const std::byte*>(input);
  round.forOthers([&](size_t member) { round.post(member, {from + member * block, block}); });
  round.reduce(reduction, from + round.self() * block, static_cast<std::byte*>(output), count);
  round.settle();
}

void allToAll(Endpoint& endpoint, const Group& group, DataType type, const void* input, void* output,
              size_t count) {
  Round round(endpoint, group, Operation::kAllToAll, type);
  exchangeBlocks(round, input, output, count);
}

void broadcast(Endpoint& endpoint, const Group& group, DataType type, int root, void* data, size_t count) {
  Round round(endpoint, group, Operation::kBroadcast, type);
  spreadBlock(round, static_cast<size_t>(root), data, count);
}

void barrier(Endpoint& endpoint, const Group& group) {
  Round round(endpoint, group, Operation::kBarrier, DataType::kUint8);
  meet(round);
}

}  // namespace pipeshard::shm
