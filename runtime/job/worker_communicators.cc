#include "runtime/job/worker_communicators.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ir/base/error.h"
#include "runtime/job/worker_link.h"
#include "runtime/messages/control_types.h"
#include "runtime/rendezvous/host_wire.h"
#include "transport/collectives/joined_communicator.h"
#include "transport/gloo/gloo_communicator.h"
#include "transport/shared/shared_memory.h"
#include "transport/wire/wire_communicator.h"

namespace pipeshard {
namespace {

// Addresses travel over the control connection.
class LinkStore : public RendezvousStore {
 public:
  explicit LinkStore(WorkerLink& link) : link_(link) {}
  void set(const std::string& key, const std::string& bytes) override { link_.store(key, bytes); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return link_.fetch(key, timeout);
  }

 private:
  WorkerLink& link_;
};

// Those that are to be connected between hosts, so that the groups that are not all on one node can meet.
// Each of them finds the same.
std::vector<RankId> ranksAcrossNodes(const std::vector<std::vector<RankId>>& groups,
                                     const IdVector<RankId, int>& node_of_rank) {
  std::set<RankId> ranks;
  for (const std::vector<RankId>& group : groups) {
    const auto node = [&](RankId rank) { return node_of_rank[rank]; };
    if (std::any_of(group.begin(), group.end(),
                    [&](RankId rank) { return node(rank) != node(group.front()); }))
      ranks.insert(group.begin(), group.end());
  }
  return {ranks.begin(), ranks.end()};
}

// Of one lane: 0 for the first communicator, 1 for the second, to `peers` only.
std::unique_ptr<Communicator> openBetweenHosts(const WorkerOptions& options, int ranks, int lane,
                                               std::optional<std::vector<RankId>> peers, WorkerLink& link) {
  const std::chrono::milliseconds timeout(options.transfer_timeout_ms);
  if (options.data_plane == DataPlane::kCurve)
    return openWire(
        {options.rank, ranks, options.wires.at(lane), timeout, kConnectTimeout, std::move(peers)});
  LinkStore store(link);
  GlooOptions gloo{options.rank, ranks, options.host, timeout, kConnectTimeout};
  if (lane > 0) gloo.channel = "background";
  gloo.peers = std::move(peers);
  gloo.unanswered_after = kUnanswered;
  gloo.on_unanswered = [&link](const std::vector<UnansweredRank>& ranks) {
    nlohmann::json unreached = nlohmann::json::array();
    for (const UnansweredRank& peer : ranks)
      unreached.push_back({{"number", peer.rank.index()}, {"address", peer.address}});
    link.send(control::kUnreached, {{"peers", std::move(unreached)}});
  };
  return openGloo(gloo, store);
}

}  // namespace

IdVector<RankId, int> nodesOfRanks(const WorkerOptions& options, int ranks) {
  IdVector<RankId, int> nodes = options.node_of_rank;
  if (nodes.empty()) nodes.resize(ranks);
  if (std::ssize(nodes) != ranks) {
    fail(ErrorCode::kConfiguration, "the plan has {} ranks, but {} are placed on nodes", ranks, nodes.size());
  }
  return nodes;
}

Communicators openCommunicators(const WorkerOptions& options, int ranks, size_t arena_bytes,
                                const std::vector<std::vector<RankId>>& background, WorkerLink& link,
                                SharedSegments segments) {
  const std::chrono::milliseconds timeout(options.transfer_timeout_ms);
  const IdVector<RankId, int> nodes = nodesOfRanks(options, ranks);
  const std::vector<RankId> here = ranksOnNode(nodes, options.rank);
  const RankId local_rank(std::find(here.begin(), here.end(), options.rank) - here.begin());
  auto on_node = SharedMemoryCommunicator::open(std::move(segments), local_rank, timeout, here);
  Communicators opened;
  opened.arena = on_node->createArena(arena_bytes);
  if (!background.empty()) opened.second = on_node->openSecond();
  opened.first = std::move(on_node);
  if (std::ssize(here) == ranks) return opened;
  opened.first = joinCommunicators(nodes, options.rank, std::move(opened.first),
                                   openBetweenHosts(options, ranks, 0, std::nullopt, link));
  if (background.empty()) return opened;
  opened.second =
      joinCommunicators(nodes, options.rank, std::move(opened.second),
                        openBetweenHosts(options, ranks, 1, ranksAcrossNodes(background, nodes), link));
  return opened;
}

}  // namespace pipeshard
