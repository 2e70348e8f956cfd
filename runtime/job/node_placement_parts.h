// Workers on nodes: what node_placement.cc (their way) and node_placement_messages.cc (what their nodes say)
// share. Internal to the two.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/disks/disk_exchange.h"
#include "runtime/feed/batch_pieces.h"
#include "runtime/identity/identity_reader.h"
#include "runtime/job/node_placement.h"
#include "runtime/job/node_pool.h"
#include "runtime/machine/process_state.h"
#include "runtime/messages/control_types.h"
#include "runtime/rendezvous/host_reach.h"
#include "transport/control/control_message.h"

namespace pipeshard {

// Of one number of the pool, what this attempt has there.
struct PlacedNode {
  int number = 0;
  int control_rank = -1;  // of the daemon that was told to start; -1: none was
  std::string host;
  std::string name;  // for people
  std::vector<RankId> ranks;
  std::map<RankId, int> pids;             // empty until started
  std::map<RankId, ProcessState> states;  // where there is anything to say
  bool is_silent = false;                 // and the job waits for it
  int clock_questions = 0;                // that are still to be answered
  ClockAlignment clock;
  std::map<RankId, std::vector<std::byte>> traces;  // as far as they have come
  std::set<RankId> whole_traces;
  std::optional<BatchSender> batches = {};  // where data come through a pipe
};

class NodePlacement : public WorkerPlacement {
 public:
  using Clock = std::chrono::steady_clock;

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
    if (!has_told_ && std::all_of(nodes_.begin(), nodes_.end(), [&](const PlacedNode& node) {
          return !isNeeded(node) || pool_.isHere(node.number);
        }))
      tellToStart();
    return has_told_ &&
           std::all_of(nodes_.begin(), nodes_.end(),
                       [](const PlacedNode& node) { return node.pids.size() == node.ranks.size(); }) &&
           !own_files_;
  }
  std::string describeMissing() const override;
  // Once all have joined, they read the files that they compare.
  std::chrono::milliseconds startTimeout() const override {
    return pool_.wait() + (has_told_ ? load_timeout_ : std::chrono::milliseconds(0));
  }

  int pid(RankId rank) const override {
    const auto& pids = nodeOf(rank).pids;
    const auto found = pids.find(rank);
    return found == pids.end() ? 0 : found->second;
  }
  std::string host(RankId rank) const override { return pool_.hostOf(nodeOf(rank).number); }
  ProcessState processState(RankId rank) const override {
    const auto& states = nodeOf(rank).states;
    const auto found = states.find(rank);
    return found == states.end() ? ProcessState::kUnknown : found->second;
  }
  std::vector<int> descriptors() const override { return {}; }
  std::vector<WorkerEnd> takeEnds() override { return std::exchange(ends_, {}); }
  bool allEnded() const override {
    size_t started = 0;
    for (const PlacedNode& node : nodes_) started += node.pids.size();
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

  void sendBatches() override;

  void kill() override { endAttempt(control::kKill); }
  void keep() override { endAttempt(control::kLeave); }
  void endAttempt(std::string_view word);
  Recorded collectTraces(Clock::time_point deadline) override;
  void release(int exit_code, const std::string& message) override;

 private:
  // Of a clock, each time: the fastest answer counts.
  static constexpr int kClockQuestions = 20;

  const PlacedNode& nodeOf(RankId rank) const { return nodes_.at(node_of_rank_.at(rank)); }
  // The first attempt waits for all nodes of the cluster, later ones go on with those that are used.
  bool isNeeded(const PlacedNode& node) const {
    return !node.ranks.empty() || (pool_.attempt() == 1 && node.number < pool_.count());
  }
  bool isHere(const PlacedNode& node) const {
    return node.control_rank >= 0 && pool_.nodes().at(node.number).control_rank == node.control_rank;
  }
  DiskExchange::Surroundings surroundings();
  void tellToStart();
  // What this machine, or a node, has read, with what others have: all must have read the same.
  std::optional<Failure> compare(const std::string& who, const JobIdentity& identity);
  std::optional<Failure> lookAtOwnFiles();
  nlohmann::json whatRanksRead(const std::vector<RankId>& ranks) const;
  std::optional<Failure> lookAt(PlacedNode& node);
  void noteSilence(PlacedNode& node);
  void askClock(PlacedNode& node, int times);
  // Handles what nodes say until the condition is met for all that answer, or the deadline has passed.
  template <typename Condition>
  void hearUntil(Condition condition, Clock::time_point deadline);

  // What a node with ranks says, by the message's type; nullptr: nothing for this conversation.
  using Hearing = std::optional<Failure> (NodePlacement::*)(PlacedNode& node, const ControlMessage& message);
  static Hearing hearingOf(std::string_view type);
  std::optional<Failure> hearAlive(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearBye(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearClock(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearEnded(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearEnding(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearError(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearFault(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearIdentity(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearLeaving(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearNotice(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearStarted(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearTook(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearTrace(PlacedNode& node, const ControlMessage& message);
  std::optional<Failure> hearWire(PlacedNode& node, const ControlMessage& message);
  void askSpares();
  void hearSpare(int number, const ControlMessage& message);
  void hearUnreached(const ControlMessage& message);

  NodePool& pool_;
  WorkerGroupSpec workers_;
  const JobProgressCallback& progress_;
  const LoaderFeed* feed_;  // nullptr: no pipe
  IdVector<RankId, int> node_of_rank_;
  HostReach reach_;  // of nodes with ranks
  std::chrono::milliseconds load_timeout_;
  std::optional<IdentityReader> own_files_;  // while they are read
  IdentityComparison identities_;
  std::set<int> asked_spares_;  // for their files, by control rank
  std::vector<PlacedNode> nodes_;
  std::optional<DiskExchange> disks_;  // of a job that keeps checkpoints
  std::vector<WorkerEnd> ends_;
  size_t ended_ = 0;
  bool has_told_ = false;
  bool is_released_ = false;
};

}  // namespace pipeshard
