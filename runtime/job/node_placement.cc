#include "runtime/job/node_placement.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "ir/base/ids_format.h"
#include "runtime/execute/rank_image.h"
#include "runtime/job/host_name.h"
#include "runtime/job/node_placement_parts.h"
#include "runtime/job/worker_arguments.h"
#include "transport/control/control_endpoint.h"

namespace pipeshard {
namespace {

// While waiting for several nodes.
constexpr std::chrono::milliseconds kPatience{50};

int64_t seconds(std::chrono::milliseconds time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

std::string NodePlacement::describeMissing() const {
  std::string joined;
  std::string missing;
  for (const PlacedNode& node : nodes_) {
    if (!pool_.isHere(node.number)) {
      if (isNeeded(node)) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", node.number);
    } else {
      joined += fmt::format("{}{} on {}{}", joined.empty() ? "" : ", ", node.number,
                            pool_.nodes()[node.number].host,
                            has_told_ && node.pids.empty() ? " (has not started its workers)" : "");
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
  has_told_ = true;
  own_files_.emplace(filesOf(workers_, node_of_rank_.ids()));
  // A node beside the coordinator reaches it over loopback, where the other nodes do not reach that node.
  std::string towards;
  for (const JoinedNode& node : pool_.nodes()) {
    const std::string address = pool_.server().peerAddress(node.control_rank);
    if (!address.empty() && !isLocalEndpoint("tcp://" + address + ":1")) towards = address;
  }
  for (PlacedNode& node : nodes_) {
    if (!isNeeded(node)) continue;
    node.control_rank = pool_.nodes()[node.number].control_rank;
    node.host = pool_.nodes()[node.number].host;
    node.name = pool_.nameOf(node.number);
    for (const RankId rank : node.ranks)
      pool_.server().reserve(static_cast<int>(rank.index()), pool_.nodes()[node.number].user);
    nlohmann::json start = whatRanksRead(node.ranks);
    start.update({{"towards", towards}, {"saves", disks_.has_value()}});
    if (disks_ && !node.ranks.empty()) start["disk"] = disks_->introduce(node.number, node.host);
    if (feed_ != nullptr && !node.ranks.empty()) {
      start["steps_done"] = feed_->stepsDone();
      const size_t inputs = loadProgram(workers_.plan_directory, RankId(0)).inputs.size();
      node.batches.emplace(feed_->ring(), inputs, feed_->stepsDone());
    }
    pool_.send(node.number, control::kStart, std::move(start));
  }
}

nlohmann::json NodePlacement::whatRanksRead(const std::vector<RankId>& ranks) const {
  return {{"ranks", positionsOf(ranks)},
          {"threads", workers_.threads},
          {"directory", workers_.plan_directory},
          {"arguments", workerArguments(workers_.options)}};
}

// What they have, of all ranks, as they may have to take over any: each once, when it is known what the job
// has: data may be on the hosts of ranks alone, which say what they have before they start their workers.
void NodePlacement::askSpares() {
  const bool all_have_said = std::ranges::all_of(
      nodes_, [](const PlacedNode& node) { return node.pids.size() == node.ranks.size(); });
  if (!has_told_ || own_files_ || is_released_ || !all_have_said) return;
  for (int number = 0; number < std::ssize(pool_.nodes()); ++number) {
    const bool has_ranks = number < std::ssize(nodes_) && !nodes_[number].ranks.empty();
    if (has_ranks || !pool_.isHere(number)) continue;
    if (asked_spares_.insert(pool_.nodes()[number].control_rank).second)
      pool_.send(number, control::kCompare, whatRanksRead(node_of_rank_.ids()));
  }
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

std::optional<Failure> NodePlacement::look(Clock::duration absence) {
  pool_.forgive(absence);
  pool_.keepAlive();
  if (std::optional<Failure> failure = lookAtOwnFiles()) return failure;
  askSpares();
  for (PlacedNode& node : nodes_) {
    if (node.control_rank < 0 || node.ranks.empty()) continue;
    if (std::optional<Failure> failure = lookAt(node)) return failure;
  }
  for (int number = 0; number < std::ssize(pool_.nodes()) && !is_released_; ++number) {
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
void NodePlacement::noteSilence(PlacedNode& node) {
  const bool is_silent = pool_.silenceOf(node.number) >= kNodeSilence;
  if (is_silent == node.is_silent || pool_.patience() <= kNodeSilence) return;
  node.is_silent = is_silent;
  if (!progress_) return;
  progress_({.kind = JobProgress::Kind::kNotice,
             .text = is_silent
                         ? fmt::format("{} has not answered for {} s; the job waits for it (--patience {})",
                                       node.name, seconds(kNodeSilence), seconds(pool_.patience()))
                         : fmt::format("{} answers again", node.name)});
}

std::optional<Failure> NodePlacement::lookAt(PlacedNode& node) {
  if (is_released_) return std::nullopt;
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

void NodePlacement::sendBatches() {
  for (PlacedNode& node : nodes_) {
    if (!node.batches || !isHere(node)) continue;
    node.batches->sendMore([&](nlohmann::json batch, std::span<const std::byte> bytes) {
      pool_.send(node.number, control::kBatch, std::move(batch), bytes);
    });
  }
}

void NodePlacement::endAttempt(std::string_view word) {
  for (const PlacedNode& node : nodes_) {
    if (!is_released_ && isHere(node)) pool_.send(node.number, word, nlohmann::json::object());
  }
}

std::string NodePlacement::describeUnreached() const {
  return reach_.describe(
      [this](int node) { return fmt::format("node {} (host {})", node, pool_.hostOf(node)); });
}

void NodePlacement::askClock(PlacedNode& node, int times) {
  if (times <= 0) return;
  node.clock_questions = times;
  pool_.send(node.number, control::kClock, {{"asked", Clock::now().time_since_epoch().count()}});
}

template <typename Condition>
void NodePlacement::hearUntil(Condition condition, Clock::time_point deadline) {
  const auto done = [&](const PlacedNode& node) {
    return !isHere(node) || pool_.silenceOf(node.number) >= pool_.patience() || condition(node);
  };
  while (Clock::now() < deadline && !std::all_of(nodes_.begin(), nodes_.end(), done)) {
    const auto answer = pool_.server().receive(kPatience);
    if (answer && isNodeRank(answer->rank)) handleMessage(*answer);
    look(Clock::duration::zero());
  }
}

WorkerPlacement::Recorded NodePlacement::collectTraces(Clock::time_point deadline) {
  Recorded recorded;
  recorded.bytes.resize(node_of_rank_.size());
  recorded.clocks.resize(node_of_rank_.size());
  for (PlacedNode& node : nodes_) {
    if (!isHere(node) || node.pids.empty()) continue;
    node.clock.beginAfter();
    askClock(node, kClockQuestions);
  }
  hearUntil([](const PlacedNode& node) { return node.clock_questions == 0; }, deadline);
  for (const PlacedNode& node : nodes_) {
    if (isHere(node) && !node.pids.empty())
      pool_.send(node.number, control::kTrace, nlohmann::json::object());
  }
  hearUntil([](const PlacedNode& node) { return node.whole_traces.size() == node.pids.size(); }, deadline);
  for (PlacedNode& node : nodes_) {
    for (RankId rank : node.whole_traces) {
      if (!node.pids.contains(rank)) continue;
      recorded.bytes[rank] = std::move(node.traces[rank]);
      recorded.clocks[rank] = node.clock;
    }
  }
  return recorded;
}

void NodePlacement::release(int exit_code, const std::string& message) {
  if (is_released_) return;
  is_released_ = true;
  if (!pool_.keepsNodesAfter(exit_code)) pool_.dismiss(exit_code, message);
}

std::unique_ptr<WorkerPlacement> placeOnNodes(const JobSpec& spec, WorkerGroupSpec workers,
                                              const JobProgressCallback& progress,
                                              const std::optional<CheckpointPlace>& checkpoints,
                                              const LoaderFeed* feed) {
  return std::make_unique<NodePlacement>(spec, std::move(workers), progress, checkpoints, feed);
}

}  // namespace pipeshard
