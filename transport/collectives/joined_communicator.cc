#include "transport/collectives/joined_communicator.h"

#include <algorithm>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "transport/collectives/operation.h"

namespace pipeshard {
namespace {

class JoinedCommunicator : public Communicator {
 public:
  JoinedCommunicator(IdVector<RankId, RankId> local_of_rank, RankId rank,
                     std::unique_ptr<Communicator> on_node, std::unique_ptr<Communicator> between)
      : local_of_rank_(std::move(local_of_rank)),
        rank_(rank),
        between_(std::move(between)),
        on_node_(std::move(on_node)) {
    if (!on_node_) return;
    between_->whileWaiting([this] { return on_node_->progress(); });
    on_node_->whileWaiting([this] { return between_->progress(); });
  }
  ~JoinedCommunicator() override { between_->whileWaiting(nullptr); }

  RankId rank() const override { return rank_; }
  int size() const override { return local_of_rank_.size(); }
  std::chrono::nanoseconds waited() const override {
    return last_ == nullptr ? std::chrono::nanoseconds() : last_->waited();
  }
  void interrupt() override {
    if (on_node_) on_node_->interrupt();
    between_->interrupt();
  }
  bool progress() override {
    const bool more = on_node_ && on_node_->progress();
    return between_->progress() || more;
  }

  std::unique_ptr<SendHandle> send(RankId peer, std::span<const std::byte> data) override {
    const RankId local = localOf(peer);
    return local.valid() ? on_node_->send(local, data) : between_->send(peer, data);
  }

  void receive(RankId peer, std::span<std::byte> data) override {
    const RankId local = localOf(peer);
    last_ = local.valid() ? on_node_.get() : between_.get();
    last_->receive(local.valid() ? local : peer, data);
  }

  std::unique_ptr<ReceiveHandle> postReceive(RankId peer, std::span<std::byte> data) override {
    const RankId local = localOf(peer);
    return local.valid() ? on_node_->postReceive(local, data) : between_->postReceive(peer, data);
  }

  void allReduce(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                 size_t count) override {
    const Choice choice = choose(group, type);
    choice.communicator.allReduce(choice.group, type, reduction, input, output, count);
  }

  void allGather(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    const Choice choice = choose(group, type);
    choice.communicator.allGather(choice.group, type, input, output, count);
  }

  void reduceScatter(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                     size_t count) override {
    const Choice choice = choose(group, type);
    choice.communicator.reduceScatter(choice.group, type, reduction, input, output, count);
  }

  void allToAll(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    const Choice choice = choose(group, type);
    choice.communicator.allToAll(choice.group, type, input, output, count);
  }

  void broadcast(const Group& group, DataType type, int root, void* data, size_t count) override {
    const Choice choice = choose(group, type);
    checkRoot(rank_, group, root);
    choice.communicator.broadcast(choice.group, type, root, data, count);
  }

  void barrier(const Group& group) override {
    const Choice choice = choose(group, DataType::kUint8);
    choice.communicator.barrier(choice.group);
  }

 private:
  struct Choice {
    Communicator& communicator;
    Group group;  // in its ranks
  };

  // The rank on this node's communicator; none for ranks of other nodes, and for those that `between`
  // refuses.
  RankId localOf(RankId peer) const {
    return peer < local_of_rank_.nextId() ? local_of_rank_[peer] : RankId();
  }

  Choice choose(const Group& group, DataType type) {
    checkGroup(rank_, size(), group, type);
    Group local(group.size());
    std::transform(group.begin(), group.end(), local.begin(), [&](RankId rank) { return localOf(rank); });
    const bool here = std::all_of(local.begin(), local.end(), [](RankId rank) { return rank.valid(); });
    last_ = here ? on_node_.get() : between_.get();
    return {*last_, here ? std::move(local) : group};
  }

  IdVector<RankId, RankId> local_of_rank_;  // invalid on other nodes
  RankId rank_;
  std::unique_ptr<Communicator> between_;
  std::unique_ptr<Communicator> on_node_;  // destroyed first: its peers on the node learn at once
  Communicator* last_ = nullptr;           // that of the last receive or collective
};

}  // namespace

std::vector<RankId> ranksOnNode(const IdVector<RankId, int>& node_of_rank, RankId rank) {
  std::vector<RankId> ranks;
  for (RankId other : node_of_rank.ids()) {
    if (node_of_rank[other] == node_of_rank.at(rank)) ranks.push_back(other);
  }
  return ranks;
}

std::unique_ptr<Communicator> joinCommunicators(const IdVector<RankId, int>& node_of_rank, RankId rank,
                                                std::unique_ptr<Communicator> on_node,
                                                std::unique_ptr<Communicator> between) {
  const int size = node_of_rank.size();
  if (rank >= RankId(size)) fail(ErrorCode::kInternal, "rank {} joins communicators of {} ranks", rank, size);
  const std::vector<RankId> here = ranksOnNode(node_of_rank, rank);
  IdVector<RankId, RankId> local_of_rank(node_of_rank.size());
  if (on_node) {
    for (size_t local = 0; local < here.size(); ++local) local_of_rank[here[local]] = RankId(local);
    const RankId expected = local_of_rank[rank];
    if (on_node->size() != std::ssize(here) || on_node->rank() != expected) {
      fail(ErrorCode::kInternal, "rank {}: the communicator on the node is rank {} of {}, expected {} of {}",
           rank, on_node->rank(), on_node->size(), expected, here.size());
    }
  } else if (here.size() > 1) {
    fail(ErrorCode::kInternal, "rank {} shares its node with others and has no communicator on it", rank);
  }
  if (!between || between->size() != size || between->rank() != rank) {
    fail(ErrorCode::kInternal,
         "rank {}: the communicator between nodes must have all {} ranks and be this one's", rank, size);
  }
  return std::make_unique<JoinedCommunicator>(std::move(local_of_rank), rank, std::move(on_node),
                                              std::move(between));
}

}  // namespace pipeshard
