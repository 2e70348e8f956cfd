#include "transport/collectives/mesh_collectives.h"

#include <algorithm>
#include <vector>

#include "transport/collectives/reduce.h"
#include "transport/collectives/rounds.h"

namespace pipeshard::mesh {
namespace {

constexpr size_t kSmallBytes = 8 << 10;
// One member's part of a segment: long enough to hide the answer that a message waits for, short enough for
// the cache.
constexpr size_t kPartBytes = 1 << 20;

// What all collectives share: who is who, and the messages under way.
class Round : public RoundMembers {
 public:
  Round(MessageMesh& mesh, const Group& group, Operation operation, DataType type)
      : RoundMembers(group, mesh.rank(), type), mesh_(mesh), operation_(operation), type_(type) {
    mesh.waitedTime().beginOperation();
  }

  void post(size_t member, std::span<const std::byte> data) {
    const Ticket ticket = mesh_.post(Channel::kCollective, group_[member], operation_, data);
    if (!ticket.copied) sent_.push_back({ticket, data.size()});
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
  // output := inputs of all members in group order; mine is at `own`.
  void reduce(Reduction reduction, const std::byte* own, std::byte* output, size_t count);
  // Until every posted byte may be overwritten.
  void settle() {
    for (const Sent& sent : sent_) {
      mesh_.awaitCompleted(sent.ticket,
                           {operation_, "is being read by", sent.ticket.peer, sent.bytes, group_});
    }
    sent_.clear();
  }

 private:
  struct Sent {
    Ticket ticket;
    size_t bytes;
  };

  Incoming take(size_t member, std::span<std::byte> to) {
    Incoming incoming =
        mesh_.take(Channel::kCollective, to, {operation_, "waits for", group_[member], to.size(), group_});
    // the first ones are of different members
    if (++taken_ + 1 == size()) mesh_.waitedTime().everybodyCame();
    return incoming;
  }

  MessageMesh& mesh_;
  Operation operation_;
  DataType type_;
  std::vector<Sent> sent_;
  size_t taken_ = 0;
  std::vector<std::byte> scratch_;  // the others' inputs
};

void Round::reduce(Reduction reduction, const std::byte* own, std::byte* output, size_t count) {
  const size_t stride = (bytes(count) + 63) / 64 * 64;
  if (scratch_.size() < stride * size()) scratch_.resize(stride * size());
  takeFromOthers([&](size_t member) { return std::span{scratch_.data() + member * stride, bytes(count)}; });
  std::vector<const std::byte*> inputs(size());
  for (size_t member = 0; member < size(); ++member)
    inputs[member] = member == self_ ? own : scratch_.data() + member * stride;
  reduceInOrder(type_, reduction, inputs, output, count);
}

void allReduceSmall(Round& round, Reduction reduction, const std::byte* input, std::byte* output,
                    size_t count) {
  postToOthers(round, {input, round.bytes(count)});
  // What has not left yet may lie in the output.
  std::vector<std::byte> result(round.bytes(count));
  round.reduce(reduction, input, result.data(), count);
  round.settle();
  copyUnlessSame(output, result.data(), result.size());
}

}  // namespace

void allReduce(MessageMesh& mesh, const Group& group, DataType type, Reduction reduction, const void* input,
               void* output, size_t count) {
  checkReducible(type);
  Round round(mesh, group, Operation::kAllReduce, type);
  reduceEverywhere(
      round, reduction, kSmallBytes, kPartBytes, input, output, count,
      [&](const std::byte* from, std::byte* to) { allReduceSmall(round, reduction, from, to, count); });
}

void allGather(MessageMesh& mesh, const Group& group, DataType type, const void* input, void* output,
               size_t count) {
  Round round(mesh, group, Operation::kAllGather, type);
  gatherBlocks(round, input, output, count);
}

void reduceScatter(MessageMesh& mesh, const Group& group, DataType type, Reduction reduction,
                   const void* input, void* output, size_t count) {
  checkReducible(type);
  Round round(mesh, group, Operation::kReduceScatter, type);
  const size_t block = round.bytes(count);
  const auto* from = static_cast<const std::byte*>(input);
  auto* to = static_cast<std::byte*>(output);
  const size_t length = kPartBytes / dataTypeSize(type);
  for (size_t begin = 0; begin < count; begin += length) {
    const size_t bytes = round.bytes(std::min(length, count - begin));
    round.forOthers([&](size_t member) {
      round.post(member, {from + member * block + round.bytes(begin), bytes});
    });
  }
  for (size_t begin = 0; begin < count; begin += length) {
    const std::byte* own = from + round.self() * block + round.bytes(begin);
    round.reduce(reduction, own, to + round.bytes(begin), std::min(length, count - begin));
  }
  round.settle();
}

void allToAll(MessageMesh& mesh, const Group& group, DataType type, const void* input, void* output,
              size_t count) {
  Round round(mesh, group, Operation::kAllToAll, type);
  exchangeBlocks(round, input, output, count);
}

void broadcast(MessageMesh& mesh, const Group& group, DataType type, int root, void* data, size_t count) {
  Round round(mesh, group, Operation::kBroadcast, type);
  spreadBlock(round, static_cast<size_t>(root), data, count);
}

void barrier(MessageMesh& mesh, const Group& group) {
  Round round(mesh, group, Operation::kBarrier, DataType::kUint8);
  meet(round);
}

}  // namespace pipeshard::mesh
