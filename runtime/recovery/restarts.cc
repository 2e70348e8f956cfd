#include "runtime/recovery/restarts.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/job/child_process.h"
#include "runtime/job/coordinator.h"
#include "runtime/job/node_pool.h"
#include "runtime/job/worker_group.h"
#include "runtime/recovery/node_choice.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kListen{200};

class Restarts {
 public:
  Restarts(const JobSpec& spec, const RestartOptions& options, const JobProgressCallback& progress)
      : spec_(spec),
        whole_{spec.plan_directory, spec.node_of_rank, spec.evaluation},
        options_(options),
        left_(options.restarts),
        progress_(progress),
        hear_([this](const JobProgress& event) { hear(event); }) {
    // One watch for all attempts: a signal between two of them must not be lost.
    if (spec_.signals == nullptr && spec_.handle_signals) spec_.signals = &own_signals_.emplace();
    const auto decide = [this](int code) { return goesOnAfter(code); };
    if (spec_.nodes != nullptr) spec_.nodes->keepNodesAfter(decide);
    spec_.goes_on_after = decide;
    spec_.kept_workers = &kept_workers_;
  }
  ~Restarts() {
    if (spec_.nodes != nullptr) spec_.nodes->keepNodesAfter({});
  }
  Restarts(const Restarts&) = delete;
  Restarts& operator=(const Restarts&) = delete;

  JobResult run() {
    while (true) {
      try {
        spec_.evaluation.at_start &= evaluated_step_ < 0;
        spec_.evaluation.known_step = evaluated_step_;
        step_of_attempt_ = newest_step_;
        resumed_step_.reset();
        return runJob(spec_, hear_);
      } catch (const JobInterrupted& interrupted) {
        if (!goesOnAfter(static_cast<int>(ErrorCode::kRequeue))) {
          sendAllAway(interrupted);
          throw;
        }
        failed_at_ = Clock::now();
        startAgain(sendEndingNodesAway(), /*was_lost=*/false);
      } catch (const Error& error) {
        if (!goesOnAfter(static_cast<int>(error.code()))) {
          sendAllAway(error);
          if (error.code() == ErrorCode::kOutOfMemory && left_ > 0 && has_started_) failForMemory(error);
          throw;
        }
        checkSignals();
        const auto* const failed = dynamic_cast<const JobFailed*>(&error);
        failed_at_ = failed != nullptr ? failed->began() : Clock::now();
        if (error.code() == ErrorCode::kNotANumber)
          goBack(error.message());
        else if (error.code() == ErrorCode::kNoGoodCheckpoint)
          giveUpCheckpoint(error.message());
        else
          startAgain(error.message(), /*was_lost=*/true);
      }
    }
  }

 private:
  // Asked by the pool too, before it lets its nodes go.
  bool goesOnAfter(int code) const {
    if (code == static_cast<int>(ErrorCode::kNotANumber))
      return options_.rewinds && has_started_ && newest_step_ > step_of_rewind_;
    if (code == static_cast<int>(ErrorCode::kNoGoodCheckpoint)) return hasOlderCheckpoint();
    if (left_ == 0 || !has_started_) return false;
    if (code != static_cast<int>(ErrorCode::kRequeue))
      return mayBeStartedAgain(static_cast<ErrorCode>(code), newest_step_ > step_of_attempt_);
    if (spec_.nodes == nullptr || spec_.nodes->wasAskedItself()) return false;
    const std::vector<JoinedNode>& nodes = spec_.nodes->nodes();
    return std::any_of(nodes.begin(), nodes.end(), [](const JoinedNode& node) { return node.ending; }) &&
           choose().has_value();
  }

  void sendAllAway(const Error& error) const {
    if (spec_.nodes != nullptr) spec_.nodes->dismiss(static_cast<int>(error.code()), error.message());
  }

  std::string sendEndingNodesAway() {
    std::string names;
    for (int number = 0; number < std::ssize(spec_.nodes->nodes()); ++number) {
      if (!spec_.nodes->isHere(number) || !spec_.nodes->nodes()[number].ending) continue;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", spec_.nodes->nameOf(number));
      spec_.nodes->sendAway(number, static_cast<int>(ErrorCode::kRequeue),
                            "what it had is saved; the job goes on without it");
    }
    return fmt::format("{} was asked to end", names);
  }

  void checkSignals() {
    const int signal = spec_.signals == nullptr ? 0 : spec_.signals->take();
    if (signal == 0) return;
    const JobInterrupted interrupted(signal, std::string());
    sendAllAway(interrupted);
    throw interrupted;
  }

  void startAgain(const std::string& why, bool was_lost) {
    fruitless_ = newest_step_ > step_of_last_restart_ || !was_lost ? 1 : fruitless_ + 1;
    if (fruitless_ > kFruitlessRestarts) {
      giveUp(ErrorCode::kNoProgress, fmt::format("no step was done after each of {} restarts; the last one "
                                                 "ended so: {}",
                                                 kFruitlessRestarts, why));
    }
    --left_;
    lose(why);
    const std::string where = spec_.nodes == nullptr ? "" : chooseAgain(why);
    restart_ = fmt::format("restart {} of {}", options_.restarts - left_, options_.restarts);
    notice(fmt::format("{}: {}{}", restart_, why, where));
  }

  // Than that of which this attempt has found that it is no good.
  bool hasOlderCheckpoint() const {
    if (!resumed_step_) return false;
    const std::vector<std::string> found = listCheckpoints(spec_.checkpoint.directory);
    return std::ranges::any_of(found, [&](const std::string& directory) {
      return stepOfCheckpoint(std::filesystem::path(directory).filename().string()) < resumed_step_;
    });
  }

  void giveUpCheckpoint(const std::string& why) {
    spec_.checkpoint.before = *resumed_step_;
    const std::string where = spec_.nodes == nullptr ? "" : chooseAgain(why);
    notice(fmt::format("{}; going back to an older one{}", why, where));
  }

  // To the newest checkpoint, or the beginning.
  void goBack(const std::string& why) {
    step_of_rewind_ = newest_step_;
    lose(why);
    const std::string where = spec_.nodes == nullptr ? "" : chooseAgain(why);
    notice(fmt::format("going back to the newest checkpoint: {}{}", why, where));
  }

  [[noreturn]] static void failForMemory(const Error& error) {
    fail(ErrorCode::kOutOfMemory,
         "{}; it is not started again: before it did a step that is new, memory was too little, and the same "
         "plan takes the same again",
         error.message());
  }

  [[noreturn]] void giveUp(ErrorCode code, const std::string& message) {
    const Error error(code, message);
    sendAllAway(error);
    throw error;
  }

  // A plan that the nodes which are there can run; the whole one if it can be.
  std::optional<FewerPlan> choose() const {
    std::vector<LiveNode> live;
    for (int number = 0; number < std::ssize(spec_.nodes->nodes()); ++number) {
      const JoinedNode& node = spec_.nodes->nodes()[number];
      if (node.control_rank >= 0 && !node.ending) live.push_back({number, node.devices});
    }
    if (const auto placed = chooseNodes(whole_.node_of_rank, live))
      return FewerPlan{whole_.directory, *placed, whole_.evaluation};
    for (const FewerPlan& plan : options_.fewer) {
      if (const auto placed = chooseNodes(plan.node_of_rank, live))
        return FewerPlan{plan.directory, *placed, plan.evaluation};
    }
    return std::nullopt;
  }

  // Sets the job's plan and places. What people should know of them, as the end of a line.
  std::string chooseAgain(const std::string& why) {
    NodePool& nodes = *spec_.nodes;
    nodes.callRoll(why, hear_);
    std::optional<FewerPlan> chosen = choose();
    if (!chosen) notice(describeShortage(why));
    const Clock::time_point end = Clock::now() + nodes.wait();
    for (; !chosen; chosen = choose()) {
      checkSignals();
      if (Clock::now() >= end) {
        giveUp(ErrorCode::kPeerUnavailable,
               fmt::format("no node has joined within {} s after this: {}", nodes.wait().count(), why));
      }
      nodes.listen(kListen, hear_);
    }
    spec_.plan_directory = chosen->directory;
    spec_.node_of_rank = chosen->node_of_rank;
    spec_.evaluation = chosen->evaluation;
    std::set<int> used(chosen->node_of_rank.begin(), chosen->node_of_rank.end());
    std::string names;
    for (const int number : used)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", nodes.nameOf(number));
    return fmt::format(
        "; going on on {}{}", names,
        chosen->directory == whole_.directory
            ? ""
            : fmt::format(" with the plan for {}, {}", counted(std::ssize(chosen->node_of_rank), "device"),
                          chosen->directory));
  }

  std::string describeShortage(const std::string& why) const {
    int devices = 0;
    for (const JoinedNode& node : spec_.nodes->nodes())
      devices += node.control_rank >= 0 && !node.ending ? node.devices : 0;
    return fmt::format(
        "{}; the nodes that are left have {}, too few for the plan's {}{}; waiting {} s for a node: {}", why,
        counted(devices, "device"), whole_.node_of_rank.size(),
        options_.fewer.empty() ? "" : " and for those for fewer", spec_.nodes->wait().count(),
        spec_.nodes->joinCommand());
  }

  void hear(const JobProgress& event) {
    has_started_ |= event.kind == JobProgress::Kind::kStarted;
    if (event.kind == JobProgress::Kind::kEvaluated) evaluated_step_ = event.step;
    if (event.kind == JobProgress::Kind::kStarted) noteProcess(event);
    if (event.kind == JobProgress::Kind::kResumed) resumed_step_ = event.step;
    if (event.kind == JobProgress::Kind::kCheckpoint) spec_.checkpoint.before = INT64_MAX;
    if (event.kind == JobProgress::Kind::kStep) {
      newest_step_ = std::max(newest_step_, event.step);
      if (lost_at_) {
        notice(describeRestart(event.step));
        endRestart("");
      }
    }
    if (progress_) progress_(event);
  }

  void noteProcess(const JobProgress& started) {
    const auto before = pids_before_.find(started.rank);
    stayed_ += before != pids_before_.end() && before->second == std::pair(started.host, started.pid);
    pids_[started.rank] = {started.host, started.pid};
  }

  // All of it in a line: what was lost, which step, how many seconds.
  std::string describeRestart(int64_t step) const {
    return fmt::format(
        "{}step {} is done {:.1f} s after the loss; {} had been done before; {} of {} worker processes "
        "stayed",
        restart_.empty() ? "" : fmt::format("{} ({}): ", restart_, lost_), step, secondsSinceLoss(),
        step_of_last_restart_, stayed_, pids_.size());
  }

  void lose(const std::string& why) {
    restart_.clear();
    if (!pids_.empty()) pids_before_ = std::exchange(pids_, {});
    stayed_ = 0;
    if (lost_at_) endRestart("; and again before a step was done");
    step_of_last_restart_ = newest_step_;
    lost_at_ = failed_at_;
    lost_ = why;
  }

  double secondsSinceLoss() const { return std::chrono::duration<double>(Clock::now() - *lost_at_).count(); }

  void endRestart(const char* how) {
    if (progress_) {
      progress_({.kind = JobProgress::Kind::kRestarted,
                 .step = step_of_last_restart_,
                 .from = resumed_step_.value_or(0),
                 .text = lost_ + how,
                 .seconds = secondsSinceLoss()});
    }
    lost_at_.reset();
  }

  void notice(std::string text) {
    if (progress_) progress_({.kind = JobProgress::Kind::kNotice, .text = std::move(text)});
  }

  KeptWorkers kept_workers_;  // of this machine, between two attempts
  JobSpec spec_;
  const FewerPlan whole_;
  const RestartOptions& options_;
  int left_;
  const JobProgressCallback& progress_;
  const JobProgressCallback hear_;
  std::optional<SignalWatch> own_signals_;
  int64_t evaluated_step_ = -1;          // after which held-out data were evaluated last; -1: never
  bool has_started_ = false;             // workers, in any attempt: what fails before is no loss
  int64_t newest_step_ = 0;              // done by any attempt
  int64_t step_of_attempt_ = 0;          // newest_step_ when it began
  std::optional<int64_t> resumed_step_;  // by this attempt
  int64_t step_of_last_restart_ = -1;
  int64_t step_of_rewind_ = -1;  // newest_step_ when the job went back last
  int fruitless_ = 0;
  Clock::time_point failed_at_;               // the last attempt
  std::optional<Clock::time_point> lost_at_;  // until a step is done again
  std::string lost_;                          // what
  std::string restart_;                       // "restart 1 of 5"; "": the job went back by itself
  // by rank: host and process of this attempt, of the one before, and how many of them are the same
  std::map<RankId, std::pair<std::string, int>> pids_, pids_before_;
  size_t stayed_ = 0;
};

}  // namespace

bool mayBeStartedAgain(ErrorCode code, bool has_new_step) {
  return code == ErrorCode::kPeerUnavailable || code == ErrorCode::kHang ||
         (code == ErrorCode::kOutOfMemory && has_new_step);
}

JobResult runWithRestarts(const JobSpec& spec, const RestartOptions& options,
                          const JobProgressCallback& progress) {
  return Restarts(spec, options, progress).run();
}

}  // namespace pipeshard
