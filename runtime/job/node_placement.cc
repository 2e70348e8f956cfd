#include "runtime/job/node_placement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ir/base/ids_format.h"
#include "runtime/execute/rank_image.h"
#include "runtime/feed/batch_pieces.h"
#include "runtime/identity/identity_reader.h"
#include "runtime/job/host_name.h"
#include "runtime/job/node_pool.h"
#include "runtime/job/worker_arguments.h"
#include "runtime/rendezvous/host_reach.h"
#include "transport/control/control_endpoint.h"
#include "transport/control/control_message.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

// Of a clock, each time: the fastest answer counts.
constexpr int kClockQuestions = 20;
// While waiting for several nodes.
constexpr std::chrono::milliseconds kPatience{50};

int64_t seconds(std::chrono::milliseconds time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

// Of one number of the pool, what this attempt has there.
struct Node {
  int number = 0;
  int control_rank = -1;  // of the daemon that was told to start; -1: none was
  std::string host;
  std::string name;  // for people
  std::vector<RankId> ranks;
  std::map<RankId, int> pids;            // empty until started
  std::map<RankId, std::string> states;  // describeProcessState, where there is anything to say
  bool silent = false;                   // and the job waits for it
  int clock_questions = 0;               // that are still to be answered
  ClockAlignment clock;
  std::map<RankId, std::vector<std::byte>> traces;  // as far as they have come
  std::set<RankId> whole_traces;
  std::optional<BatchSender> batches = {};  // where data come through a pipe
};

class NodePlacement : public WorkerPlacement {
 public:
  NodePlacement(const JobSpec& spec, WorkerGroupSpec workers, const JobProgressCallback& progress,
                const std::optional<CheckpointPlace>& checkpoints, const LoaderFeed* feed)
      : pool_(*spec.nodes),
        workers_(std::move(workers)),
        progress_(progress),
        feed_(feed),
        node_of_rank_(spec.node_of_rank),
        reach_({spec.node_of_rank.begin(), spec.node_of_rank.end()}),
        load_timeout_(spec.load_timeout) {
    if (checkpoints) disks_.emplace(*checkpoints, surroundings());
    nodes_.resize(pool_.nodes().size());
    for (size_t n = 0; n < nodes_.size(); ++n) nodes_[n].number = static_cast<int>(n);
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
    if (!told_ && std::all_of(nodes_.begin(), nodes_.end(),
                              [&](const Node& node) { return !isNeeded(node) || pool_.isHere(node.number); }))
      tellToStart();
    return told_ &&
           std::all_of(nodes_.begin(), nodes_.end(),
                       [](const Node& node) { return node.pids.size() == node.ranks.size(); }) &&
           !own_files_;
  }
  std::string describeMissing() const override;
  // Once all have joined, they read the files that they compare.
  std::chrono::milliseconds startTimeout() const override {
    return pool_.wait() + (told_ ? load_timeout_ : std::chrono::milliseconds(0));
  }

  int pid(RankId rank) const override {
    const auto& pids = nodeOf(rank).pids;
    const auto found = pids.find(rank);
    return found == pids.end() ? 0 : found->second;
  }
  std::string host(RankId rank) const override { return pool_.hostOf(nodeOf(rank).number); }
  std::string processState(RankId rank) const override {
    const auto& states = nodeOf(rank).states;
    const auto found = states.find(rank);
    return found == states.end() ? "" : found->second;
  }
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
  std::chrono::milliseconds causeWindow() const override { return pool_.patience() + 2 * kNodeHeartbeat; }
  std::string describeUnreached() const override;
  std::chrono::milliseconds patience() const override { return pool_.patience(); }

  DiskOfNode diskOf(RankId rank) const override {
    return disks_ ? disks_->diskOf(node_of_rank_.at(rank)) : DiskOfNode{};
  }
  void publish(const Checkpoint& checkpoint) override {
    if (disks_) disks_->publish(checkpoint);
  }
  void drop(int64_t step) override {
    if (disks_) disks_->drop(step);
  }
  bool isPublishing() const override { return disks_ && disks_->isAwaited(); }

  void sendBatches() override {
    for (Node& node : nodes_) {
      if (!node.batches || !isHere(node)) continue;
      node.batches->sendMore([&](nlohmann::json batch, std::span<const std::byte> bytes) {
        pool_.send(node.number, "batch", std::move(batch), bytes);
      });
    }
  }

  void kill() override { endAttempt("kill"); }
  void keep() override { endAttempt("leave"); }
  void endAttempt(std::string_view word);
  Recorded collectTraces(Clock::time_point deadline) override;
  void release(int exit_code, const std::string& message) override;

 private:
  const Node& nodeOf(RankId rank) const { return nodes_.at(node_of_rank_.at(rank)); }
  // The first attempt waits for all nodes of the cluster, later ones go on with those that are used.
  bool isNeeded(const Node& node) const {
    return !node.ranks.empty() || (pool_.attempt() == 1 && node.number < pool_.count());
  }
  bool isHere(const Node& node) const {
    return node.control_rank >= 0 && pool_.nodes().at(node.number).control_rank == node.control_rank;
  }
  DiskExchange::Surroundings surroundings();
  void tellToStart();
  // What this machine, or a node, has read, with what others have: all must have read the same.
  std::optional<Failure> compare(const std::string& who, const JobIdentity& identity);
  std::optional<Failure> lookAtOwnFiles();
  void takeWire(const Node& node, const ControlMessage& message);
  void takeUnreached(const ControlMessage& message);
  void askClock(Node& node, int times);
  void takeClock(Node& node, const nlohmann::json& body);
  void takeTracePiece(Node& node, const ControlMessage& message);
  // Handles what nodes say until the condition is met for all that answer, or the deadline has passed.
  template <typename Condition>
  void hearUntil(Condition condition, Clock::time_point deadline);
  std::optional<Failure> lookAt(Node& node);
  void noteSilence(Node& node);

  NodePool& pool_;
  WorkerGroupSpec workers_;
  const JobProgressCallback& progress_;
  const LoaderFeed* feed_;  // nullptr: no pipe
  IdVector<RankId, int> node_of_rank_;
  HostReach reach_;  // of nodes with ranks
  std::chrono::milliseconds load_timeout_;
  std::optional<IdentityReader> own_files_;  // while they are read
  IdentityComparison identities_;
  std::vector<Node> nodes_;
  std::optional<DiskExchange> disks_;  // of a job that keeps checkpoints
  std::vector<WorkerEnd> ends_;
  size_t ended_ = 0;
  bool told_ = false;
  bool released_ = false;
};

std::string NodePlacement::describeMissing() const {
  std::string joined;
  std::string missing;
  for (const Node& node : nodes_) {
    if (!pool_.isHere(node.number)) {
      if (isNeeded(node)) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", node.number);
    } else {
      joined += fmt::format("{}{} on {}{}", joined.empty() ? "" : ", ", node.number,
                            pool_.nodes()[node.number].host,
                            told_ && node.pids.empty() ? " (has not started its workers)" : "");
    }
  }
  return fmt::format("not all nodes have joined within {} s; missing: {}; joined: {}. Start on each host: {}",
                     pool_.wait().count(), missing.empty() ? "none" : "node " + missing,
                     joined.empty() ? "none" : "node " + joined, pool_.joinCommand());
}

DiskExchange::Surroundings NodePlacement::surroundings() {
  return {[this](int node, std::string_view type, nlohmann::json body, std::span<const std::byte> payload) {
            if (pool_.isHere(node)) pool_.send(node, type, std::move(body), payload);
          },
          [this] {
            std::vector<int> here;
            for (int number = 0; number < std::ssize(pool_.nodes()); ++number) {
              if (pool_.isHere(number)) here.push_back(number);
            }
            return here;
          },
          [this](const std::string& text) {
            if (progress_) progress_({.kind = JobProgress::Kind::kNotice, .text = text});
          }};
}

void NodePlacement::tellToStart() {
  told_ = true;
  own_files_.emplace(filesOf(workers_, node_of_rank_.ids()));
  // A node beside the coordinator reaches it over loopback, where the other nodes do not reach that node.
  std::string towards;
  for (const JoinedNode& node : pool_.nodes()) {
    const std::string address = pool_.server().peerAddress(node.control_rank);
    if (!address.empty() && !isLocalEndpoint("tcp://" + address + ":1")) towards = address;
  }
  for (Node& node : nodes_) {
    if (!isNeeded(node)) continue;
    node.control_rank = pool_.nodes()[node.number].control_rank;
    node.host = pool_.nodes()[node.number].host;
    node.name = pool_.nameOf(node.number);
    for (const RankId rank : node.ranks)
      pool_.server().reserve(static_cast<int>(rank.index()), pool_.nodes()[node.number].user);
    nlohmann::json start = {
        {"ranks", positionsOf(node.ranks)},     {"threads", workers_.threads},
        {"directory", workers_.plan_directory}, {"towards", towards},
        {"saves", disks_.has_value()},          {"arguments", workerArguments(workers_.options)}};
    if (disks_ && !node.ranks.empty()) start["disk"] = disks_->introduce(node.number, node.host);
    if (feed_ != nullptr && !node.ranks.empty()) {
      start["steps_done"] = feed_->stepsDone();
      const size_t inputs = loadProgram(workers_.plan_directory, RankId(0)).inputs.size();
      node.batches.emplace(feed_->ring(), inputs, feed_->stepsDone());
    }
    pool_.send(node.number, "start", std::move(start));
  }
}

std::optional<Failure> NodePlacement::compare(const std::string& who, const JobIdentity& identity) {
  const std::optional<std::string> difference = identities_.add(who, identity);
  if (!difference) return std::nullopt;
  return Failure{ErrorCode::kVersionMismatch, *difference};
}

std::optional<Failure> NodePlacement::lookAtOwnFiles() {
  if (!own_files_) return std::nullopt;
  if (const std::optional<std::string> notice = own_files_->takeNotice(); notice && progress_)
    progress_({.kind = JobProgress::Kind::kNotice, .text = *notice});
  if (!own_files_->isDone()) return std::nullopt;
  try {
    const JobIdentity identity = own_files_->take();
    own_files_.reset();
    return compare(fmt::format("the coordinator (host {})", hostName()), identity);
  } catch (const Error& error) {
    own_files_.reset();
    return Failure{error.code(), error.message()};
  }
}

std::optional<Failure> NodePlacement::handleMessage(const ControlMessage& message) {
  if (message.type == kRegister) {
    const std::optional<std::string> other = pool_.admit(message, progress_);
    if (other && !told_) return Failure{ErrorCode::kVersionMismatch, *other};
    return std::nullopt;
  }
  if (message.type == "unreached") takeUnreached(message);
  const std::optional<int> number = pool_.numberOf(message.rank);
  if (!number) return std::nullopt;
  pool_.hear(*number);
  if (disks_ && disks_->hear(*number, message.type, message.body, message.payload)) return std::nullopt;
  const auto node = std::find_if(nodes_.begin(), nodes_.end(),
                                 [&](const Node& entry) { return entry.control_rank == message.rank; });
  if (node == nodes_.end() || node->ranks.empty()) {  // a spare
    if (message.type == "leaving" || message.type == "bye" || message.type == kFault) pool_.drop(*number);
    if (message.type == "ending")
      pool_.sendAway(*number, static_cast<int>(ErrorCode::kRequeue), "it had no ranks");
    return std::nullopt;
  }
  const nlohmann::json& body = message.body;
  if (message.type == "ending") pool_.askToEnd(*number, body.at("signal").get<int>());
  if (message.type == kFault) {
    return Failure{ErrorCode::kInternal,
                   fmt::format("{}: {}", node->name, body.at("message").get<std::string>())};
  }
  if (message.type == "took" && node->batches) {
    node->batches->acknowledge();
    sendBatches();
  }
  if (message.type == "alive") node->states = statesFromJson(body);
  if (message.type == "identity") return compare(node->name, identityFromJson(body.at("files")));
  if (message.type == "wire" || message.type == "wired") takeWire(*node, message);
  if (message.type == "notice" && progress_) {
    progress_({.kind = JobProgress::Kind::kNotice,
               .text = fmt::format("{}: {}", node->name, body.at("message").get<std::string>())});
  }
  if (message.type == "started") {
    const auto pids = body.at("pids").get<std::vector<int>>();
    if (pids.size() != node->ranks.size()) {
      return Failure{ErrorCode::kInternal,
                     fmt::format("{} started {} workers of {}", node->name, pids.size(), node->ranks.size())};
    }
    for (size_t i = 0; i < pids.size(); ++i) node->pids[node->ranks[i]] = pids[i];
    if (workers_.options.trace_steps > 0) askClock(*node, kClockQuestions);
  } else if (message.type == "ended") {
    const RankId rank(body.at("rank").get<size_t>());
    if (!node->pids.contains(rank)) return std::nullopt;
    ends_.push_back(
        {rank, body.at("description").get<std::string>(), knownErrorCode(body.at("code").get<int>())});
    ++ended_;
  } else if (message.type == "error") {
    return Failure{knownErrorCode(body.at("code").get<int>()),
                   fmt::format("{}: {}", node->name, body.at("message").get<std::string>())};
  } else if (message.type == "clock") {
    takeClock(*node, body);
  } else if (message.type == "trace") {
    takeTracePiece(*node, message);
  } else if (message.type == "bye") {
    pool_.drop(*number);
  } else if (message.type == "leaving") {
    pool_.drop(*number);
    return Failure{ErrorCode::kPeerUnavailable,
                   fmt::format("{} was stopped: {}", node->name, body.at("message").get<std::string>())};
  }
  return std::nullopt;
}

std::optional<Failure> NodePlacement::look(Clock::duration absence) {
  pool_.forgive(absence);
  pool_.keepAlive();
  if (std::optional<Failure> failure = lookAtOwnFiles()) return failure;
  for (Node& node : nodes_) {
    if (node.control_rank < 0 || node.ranks.empty()) continue;
    if (std::optional<Failure> failure = lookAt(node)) return failure;
  }
  for (int number = 0; number < std::ssize(pool_.nodes()) && !released_; ++number) {
    if (!pool_.isHere(number) || pool_.silenceOf(number) < pool_.patience()) continue;
    if (progress_) {
      progress_(
          {.kind = JobProgress::Kind::kNotice,
           .text = fmt::format("{}, which has no ranks, does not answer any more", pool_.nameOf(number))});
    }
    pool_.drop(number);
  }
  return std::nullopt;
}

// Of a node that the job waits for, longer than others would.
void NodePlacement::noteSilence(Node& node) {
  const bool silent = pool_.silenceOf(node.number) >= kNodeSilence;
  if (silent == node.silent || pool_.patience() <= kNodeSilence) return;
  node.silent = silent;
  if (!progress_) return;
  progress_({.kind = JobProgress::Kind::kNotice,
             .text = silent
                         ? fmt::format("{} has not answered for {} s; the job waits for it (--patience {})",
                                       node.name, seconds(kNodeSilence), seconds(pool_.patience()))
                         : fmt::format("{} answers again", node.name)});
}

std::optional<Failure> NodePlacement::lookAt(Node& node) {
  if (released_) return std::nullopt;
  if (!isHere(node)) {
    return Failure{
        ErrorCode::kPeerUnavailable,
        fmt::format("{} had lost the coordinator and ended its workers: the network between was cut",
                    node.name)};
  }
  noteSilence(node);
  if (pool_.silenceOf(node.number) < pool_.patience()) return std::nullopt;
  const Clock::time_point last_heard = pool_.nodes()[node.number].last_heard;
  // Whoever goes on without it need not wait for it once more.
  if (pool_.keepsNodesAfter(static_cast<int>(ErrorCode::kPeerUnavailable))) pool_.drop(node.number);
  return Failure{ErrorCode::kPeerUnavailable,
                 fmt::format("{} with rank{} {} has not answered for {} s: its daemon was killed or "
                             "stopped, its machine is down, or the network between is cut",
                             node.name, node.ranks.size() == 1 ? "" : "s", fmt::join(node.ranks, ", "),
                             seconds(pool_.patience())),
                 /*is_cause=*/true, /*done=*/0, last_heard};
}

void NodePlacement::endAttempt(std::string_view word) {
  for (const Node& node : nodes_) {
    if (!released_ && isHere(node)) pool_.send(node.number, word, nlohmann::json::object());
  }
}

// Every host that has ranks learns where the others' relays are; when all let each other in, they connect.
void NodePlacement::takeWire(const Node& node, const ControlMessage& message) {
  nlohmann::json body;
  const std::string_view type = reach_.take(node.number, message.type, message.body, body);
  for (const int number : reach_.nodes()) {
    if (!type.empty()) pool_.send(number, type, body);
  }
}

// Of a daemon, which names nodes, or of a worker, which names ranks.
void NodePlacement::takeUnreached(const ControlMessage& message) {
  const bool is_daemon = message.rank >= kFirstNodeRank;
  const std::optional<int> from =
      is_daemon ? pool_.numberOf(message.rank) : node_of_rank_.at(RankId(message.rank));
  const auto most = is_daemon ? std::ssize(nodes_) : std::ssize(node_of_rank_);
  std::map<int, std::string> unreached;
  for (const nlohmann::json& peer : message.body.at("peers")) {
    const int number = peer.at("number").get<int>();
    if (number >= most) continue;
    unreached[is_daemon ? number : node_of_rank_[RankId(number)]] = peer.at("address").get<std::string>();
  }
  if (from) reach_.note(message.rank, *from, std::move(unreached));
}

std::string NodePlacement::describeUnreached() const {
  return reach_.describe(
      [this](int node) { return fmt::format("node {} (host {})", node, pool_.hostOf(node)); });
}

void NodePlacement::askClock(Node& node, int times) {
  if (times <= 0) return;
  node.clock_questions = times;
  pool_.send(node.number, "clock", {{"asked", Clock::now().time_since_epoch().count()}});
}

void NodePlacement::takeClock(Node& node, const nlohmann::json& body) {
  const int64_t answered = Clock::now().time_since_epoch().count();
  node.clock.add({body.at("asked").get<int64_t>(), body.at("now").get<int64_t>(), answered});
  // Where the last round begins before the first has been answered, one answer more comes than it counts.
  if (node.clock_questions > 0) askClock(node, --node.clock_questions);
}

void NodePlacement::takeTracePiece(Node& node, const ControlMessage& message) {
  const nlohmann::json& body = message.body;
  const RankId rank(body.at("rank").get<size_t>());
  std::vector<std::byte>& trace = node.traces[rank];
  if (body.at("offset").get<size_t>() != trace.size()) return;  // a piece is missing: the rest is of no use
  trace.insert(trace.end(), message.payload.begin(), message.payload.end());
  if (trace.size() == body.at("total").get<size_t>()) node.whole_traces.insert(rank);
}

template <typename Condition>
void NodePlacement::hearUntil(Condition condition, Clock::time_point deadline) {
  const auto done = [&](const Node& node) {
    return !isHere(node) || pool_.silenceOf(node.number) >= pool_.patience() || condition(node);
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
    if (!isHere(node) || node.pids.empty()) continue;
    node.clock.beginAfter();
    askClock(node, kClockQuestions);
  }
  hearUntil([](const Node& node) { return node.clock_questions == 0; }, deadline);
  for (const Node& node : nodes_) {
    if (isHere(node) && !node.pids.empty()) pool_.send(node.number, "trace", nlohmann::json::object());
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
  if (!pool_.keepsNodesAfter(exit_code)) pool_.dismiss(exit_code, message);
}

}  // namespace

std::unique_ptr<WorkerPlacement> placeOnNodes(const JobSpec& spec, WorkerGroupSpec workers,
                                              const JobProgressCallback& progress,
                                              const std::optional<CheckpointPlace>& checkpoints,
                                              const LoaderFeed* feed) {
  return std::make_unique<NodePlacement>(spec, std::move(workers), progress, checkpoints, feed);
}

}  // namespace pipeshard
