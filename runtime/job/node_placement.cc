#include "runtime/job/node_placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ir/base/ids_format.h"
#include "runtime/files/hex.h"
#include "runtime/job/node_pool.h"
#include "transport/control/control_endpoint.h"
#include "transport/control/control_message.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kFarewell{1'000};
// Of a clock, each time: the fastest answer counts.
constexpr int kClockQuestions = 20;
// While waiting for several nodes.
constexpr std::chrono::milliseconds kPatience{50};

struct Node {
  int control_rank = -1;  // -1: has not joined
  std::string host;
  int pid = 0;
  Clock::time_point last_heard;
  std::vector<RankId> ranks;
  std::map<RankId, int> pids;  // empty until started
  int clock_questions = 0;     // that are still to be answered
  ClockAlignment clock;
  std::map<RankId, std::vector<std::byte>> traces;  // as far as they have come
  std::set<RankId> whole_traces;
};

class NodePlacement : public WorkerPlacement {
 public:
  NodePlacement(const JobSpec& spec, WorkerGroupSpec workers, const JobProgressCallback& progress)
      : pool_(*spec.nodes),
        workers_(std::move(workers)),
        progress_(progress),
        node_of_rank_(spec.node_of_rank) {
    nodes_.resize(pool_.count());
    for (RankId rank : node_of_rank_.ids()) {
      nodes_.at(node_of_rank_[rank]).ranks.push_back(rank);
    }
  }
  // Also when an exception ends the job: nodes are not left with workers of a job that is over.
  ~NodePlacement() override {
    NodePlacement::kill();
    NodePlacement::release(static_cast<int>(ErrorCode::kInternal), "the job ended without a word");
  }

  bool start() override {
    if (!told_ &&
        std::all_of(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.control_rank >= 0; }))
      tellToStart();
    return told_ && std::all_of(nodes_.begin(), nodes_.end(),
                                [](const Node& node) { return node.pids.size() == node.ranks.size(); });
  }
  std::string describeMissing() const override;
  std::chrono::milliseconds startTimeout() const override { return pool_.wait(); }

  int pid(RankId rank) const override {
    const auto& pids = nodeOf(rank).pids;
    const auto found = pids.find(rank);
    return found == pids.end() ? 0 : found->second;
  }
  std::string host(RankId rank) const override { return nodeOf(rank).host; }
  std::string processState(RankId) const override { return ""; }
  std::vector<int> descriptors() const override { return {}; }
  std::vector<WorkerEnd> takeEnds() override { return std::exchange(ends_, {}); }
  bool allEnded() const override {
    size_t started = 0;
    for (const Node& node : nodes_) started += node.pids.size();
    return ended_ == started;
  }

  std::optional<Failure> handleMessage(const ControlMessage& message) override;
  std::optional<Failure> look(Clock::duration absence) override;
  // Whatever the cause is, it shows when its node has reported it, or has been silent for too long.
  std::chrono::milliseconds causeWindow() const override { return kNodeSilence + 2 * kNodeHeartbeat; }

  void kill() override;
  Recorded collectTraces(Clock::time_point deadline) override;
  void release(int exit_code, const std::string& message) override;

 private:
  const Node& nodeOf(RankId rank) const { return nodes_.at(node_of_rank_.at(rank)); }
  std::string nameOf(const Node& node) const {
    return fmt::format("node {} (host {}, pid {})", &node - nodes_.data(), node.host, node.pid);
  }
  void tellToStart();
  void askClock(Node& node, int times);
  void takeClock(Node& node, const nlohmann::json& body);
  void takeTracePiece(Node& node, const nlohmann::json& body);
  // Handles what nodes say until the condition is met for all that answer, or the deadline has passed.
  template <typename Condition>
  void hearUntil(Condition condition, Clock::time_point deadline);
  void admit(const ControlMessage& message);
  void send(const Node& node, std::string_view type, nlohmann::json body);

  NodePool& pool_;
  WorkerGroupSpec workers_;
  const JobProgressCallback& progress_;
  IdVector<RankId, int> node_of_rank_;
  std::vector<Node> nodes_;
  std::vector<WorkerEnd> ends_;
  size_t ended_ = 0;
  bool told_ = false;
  bool released_ = false;
  Clock::time_point last_sent_;
};

void NodePlacement::send(const Node& node, std::string_view type, nlohmann::json body) {
  try {
    pool_.server().send(node.control_rank, type, std::move(body));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPeerUnavailable) throw;  // else its silence will tell
  }
}

std::string NodePlacement::describeMissing() const {
  std::string joined;
  std::string missing;
  for (const Node& node : nodes_) {
    if (node.control_rank < 0) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", &node - nodes_.data());
    } else {
      joined += fmt::format("{}{} on {}{}", joined.empty() ? "" : ", ", &node - nodes_.data(), node.host,
                            told_ && node.pids.empty() ? " (has not started its workers)" : "");
    }
  }
  return fmt::format("not all nodes have joined within {} s; missing: {}; joined: {}. Start on each host: {}",
                     pool_.wait().count(), missing.empty() ? "none" : "node " + missing,
                     joined.empty() ? "none" : "node " + joined, pool_.joinCommand());
}

void NodePlacement::tellToStart() {
  told_ = true;
  // A node beside the coordinator reaches it over loopback, where the other nodes do not reach that node.
  std::string towards;
  for (const Node& node : nodes_) {
    const std::string address = pool_.server().peerAddress(node.control_rank);
    if (!address.empty() && !isLocalEndpoint("tcp://" + address + ":1")) towards = address;
  }
  for (const Node& node : nodes_) {
    send(node, "start",
         {{"ranks", positionsOf(node.ranks)},
          {"threads", workers_.threads},
          {"directory", workers_.plan_directory},
          {"towards", towards},
          {"arguments", workerArguments(workers_.options)}});
  }
}

// A node that names its index gets that place, any other the first free one.
void NodePlacement::admit(const ControlMessage& message) {
  const nlohmann::json& body = message.body;
  const int wanted = body.value("index", -1);
  const std::string host = body.at("host").get<std::string>();
  const auto refuse = [&](ErrorCode code, const std::string& reason) {
    pool_.server().send(message.rank, "stop", {{"code", static_cast<int>(code)}, {"message", reason}});
    pool_.server().forget(message.rank);
  };
  if (wanted >= std::ssize(nodes_)) {
    return refuse(ErrorCode::kConfiguration,
                  fmt::format("this is node {}, but the plan's cluster has {} nodes; they count from 0",
                              wanted, nodes_.size()));
  }
  const int pid = body.at("pid").get<int>();
  // A node whose first try to join was answered too late comes again, to the place it has.
  auto free = std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return node.control_rank >= 0 && node.pid == pid && node.host == host;
  });
  if (free != nodes_.end() && !told_) {
    free->control_rank = message.rank;
    free->last_heard = Clock::now();
    return;
  }
  free = wanted >= 0 ? nodes_.begin() + wanted
                     : std::find_if(nodes_.begin(), nodes_.end(),
                                    [](const Node& node) { return node.control_rank < 0; });
  if (free == nodes_.end())
    return refuse(ErrorCode::kConfiguration, fmt::format("the job has its {} nodes already", nodes_.size()));
  if (free->control_rank >= 0) {
    return refuse(
        ErrorCode::kConfiguration,
        fmt::format("node {} has joined already, from host {}, pid {}; give every node an index of its own",
                    wanted, free->host, free->pid));
  }
  free->control_rank = message.rank;
  free->host = host;
  free->pid = pid;
  free->last_heard = Clock::now();
  if (progress_) {
    progress_({.kind = JobProgress::Kind::kNodeJoined,
               .node = static_cast<int>(free - nodes_.begin()),
               .pid = free->pid,
               .host = free->host});
  }
}

std::optional<Failure> NodePlacement::handleMessage(const ControlMessage& message) {
  if (message.type == kRegister) {
    admit(message);
    return std::nullopt;
  }
  const auto node = std::find_if(nodes_.begin(), nodes_.end(),
                                 [&](const Node& entry) { return entry.control_rank == message.rank; });
  if (node == nodes_.end()) return std::nullopt;
  node->last_heard = Clock::now();
  const nlohmann::json& body = message.body;
  if (message.type == kFault) {
    return Failure{ErrorCode::kInternal,
                   fmt::format("{}: {}", nameOf(*node), body.at("message").get<std::string>())};
  }
  if (message.type == "started") {
    const auto pids = body.at("pids").get<std::vector<int>>();
    if (pids.size() != node->ranks.size()) {
      return Failure{ErrorCode::kInternal, fmt::format("{} started {} workers of {}", nameOf(*node),
                                                       pids.size(), node->ranks.size())};
    }
    for (size_t i = 0; i < pids.size(); ++i) node->pids[node->ranks[i]] = pids[i];
    if (workers_.options.trace_steps > 0) askClock(*node, kClockQuestions);
  } else if (message.type == "ended") {
    const RankId rank(body.at("rank").get<size_t>());
    if (!node->pids.contains(rank)) return std::nullopt;
    ends_.push_back({rank, body.at("description").get<std::string>()});
    ++ended_;
  } else if (message.type == "error") {
    return Failure{knownErrorCode(body.at("code").get<int>()),
                   fmt::format("{}: {}", nameOf(*node), body.at("message").get<std::string>())};
  } else if (message.type == "clock") {
    takeClock(*node, body);
  } else if (message.type == "trace") {
    takeTracePiece(*node, body);
  } else if (message.type == "bye") {
    node->control_rank = -1;
  } else if (message.type == "leaving") {
    return Failure{ErrorCode::kPeerUnavailable,
                   fmt::format("{} was stopped: {}", nameOf(*node), body.at("message").get<std::string>())};
  }
  return std::nullopt;
}

std::optional<Failure> NodePlacement::look(Clock::duration absence) {
  const Clock::time_point now = Clock::now();
  const bool is_time = now - last_sent_ >= kNodeHeartbeat;
  if (is_time) last_sent_ = now;
  for (Node& node : nodes_) {
    if (node.control_rank < 0) continue;
    node.last_heard = std::min(now, node.last_heard + absence);
    if (is_time) send(node, "alive", nlohmann::json::object());
    if (now - node.last_heard < kNodeSilence) continue;
    return Failure{ErrorCode::kPeerUnavailable,
                   fmt::format("{} with rank{} {} has not answered for {} s: its daemon was killed or "
                               "stopped, its machine is down, or the network between is cut",
                               nameOf(node), node.ranks.size() == 1 ? "" : "s", fmt::join(node.ranks, ", "),
                               std::chrono::duration_cast<std::chrono::seconds>(kNodeSilence).count())};
  }
  return std::nullopt;
}

void NodePlacement::kill() {
  if (released_) return;
  for (const Node& node : nodes_) {
    if (node.control_rank >= 0) send(node, "kill", nlohmann::json::object());
  }
}

void NodePlacement::askClock(Node& node, int times) {
  if (times <= 0) return;
  node.clock_questions = times;
  send(node, "clock", {{"asked", Clock::now().time_since_epoch().count()}});
}

void NodePlacement::takeClock(Node& node, const nlohmann::json& body) {
  const int64_t answered = Clock::now().time_since_epoch().count();
  node.clock.add({body.at("asked").get<int64_t>(), body.at("now").get<int64_t>(), answered});
  askClock(node, --node.clock_questions);
}

void NodePlacement::takeTracePiece(Node& node, const nlohmann::json& body) {
  const RankId rank(body.at("rank").get<size_t>());
  std::vector<std::byte>& trace = node.traces[rank];
  if (body.at("offset").get<size_t>() != trace.size()) return;  // a piece is missing: the rest is of no use
  const std::vector<std::byte> bytes = fromHex(body.at("bytes").get<std::string>());
  trace.insert(trace.end(), bytes.begin(), bytes.end());
  if (trace.size() == body.at("total").get<size_t>()) node.whole_traces.insert(rank);
}

template <typename Condition>
void NodePlacement::hearUntil(Condition condition, Clock::time_point deadline) {
  const auto done = [&](const Node& node) {
    return node.control_rank < 0 || Clock::now() - node.last_heard >= kNodeSilence || condition(node);
  };
  while (Clock::now() < deadline && !std::all_of(nodes_.begin(), nodes_.end(), done)) {
    const auto answer = pool_.server().receive(kPatience);
    if (answer && answer->rank >= kFirstNodeRank) handleMessage(*answer);
    look(Clock::duration::zero());
  }
}

WorkerPlacement::Recorded NodePlacement::collectTraces(Clock::time_point deadline) {
  Recorded recorded;
  recorded.bytes.resize(node_of_rank_.size());
  recorded.clocks.resize(node_of_rank_.size());
  for (Node& node : nodes_) {
    if (node.control_rank < 0 || node.pids.empty()) continue;
    node.clock.beginAfter();
    askClock(node, kClockQuestions);
  }
  hearUntil([](const Node& node) { return node.clock_questions == 0; }, deadline);
  for (const Node& node : nodes_) {
    if (node.control_rank >= 0 && !node.pids.empty()) send(node, "trace", nlohmann::json::object());
  }
  hearUntil([](const Node& node) { return node.whole_traces.size() == node.pids.size(); }, deadline);
  for (Node& node : nodes_) {
    for (RankId rank : node.whole_traces) {
      if (!node.pids.contains(rank)) continue;
      recorded.bytes[rank] = std::move(node.traces[rank]);
      recorded.clocks[rank] = node.clock;
    }
  }
  return recorded;
}

void NodePlacement::release(int exit_code, const std::string& message) {
  if (released_) return;
  released_ = true;
  pool_.setReleased();
  for (const Node& node : nodes_) {
    if (node.control_rank >= 0) send(node, "stop", {{"code", exit_code}, {"message", message}});
  }
  const Clock::time_point end = Clock::now() + kFarewell;
  const auto is_gone = [](const Node& node) {
    return node.control_rank < 0 || Clock::now() - node.last_heard >= kNodeSilence;
  };
  while (Clock::now() < end && !std::all_of(nodes_.begin(), nodes_.end(), is_gone)) {
    if (const auto answer = pool_.server().receive(std::chrono::milliseconds(50));
        answer && answer->rank >= kFirstNodeRank)
      handleMessage(*answer);
  }
}

}  // namespace

std::unique_ptr<WorkerPlacement> placeOnNodes(const JobSpec& spec, WorkerGroupSpec workers,
                                              const JobProgressCallback& progress) {
  return std::make_unique<NodePlacement>(spec, std::move(workers), progress);
}

}  // namespace pipeshard
