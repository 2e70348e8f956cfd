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
#include "runtime/identity/plan_mark.h"
#include "runtime/job/child_process.h"
#include "runtime/job/coordinator.h"
#include "runtime/job/node_pool.h"
#include "runtime/job/worker_group.h"
#include "runtime/recovery/checkpoint_parts.h"
#include "runtime/recovery/node_choice.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kListen{200};
// Of nodes that are left out: they may come again and again.
constexpr int kMostLeftOut = 20;

class Restarts {
 public:
  Restarts(const JobSpec& spec, const RestartOptions& options, const JobProgressCallback& progress)
      : spec_(spec),
        whole_{spec.plan_directory, spec.node_of_rank, spec.evaluation},
        options_(options),
        left_(options.restarts),
        progress_(progress),
        hear_([this](const JobProgress& event) { hear(event); }) {
    if (spec_.plan_mark.empty()) spec_.plan_mark = planMark(spec_.plan_directory);
    marks_[spec_.plan_directory] = spec_.plan_mark;
    for (const FewerPlan& fewer : options_.fewer) marks_[fewer.directory] = planMark(fewer.directory);
    // One watch for all attempts: a signal between two of them must not be lost.
    if (spec_.signals == nullptr && spec_.handle_signals) spec_.signals = &own_signals_.emplace();
    const auto decide = [this](int code) { return mayLeaveOut(code) || goesOnAfter(code); };
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
        loaded_ = 0;
        why_not_.clear();
        return runJob(spec_, hear_);
      } catch (const JobInterrupted& interrupted) {
        if (!goesOnAfter(static_cast<int>(ErrorCode::kRequeue))) {
          if (!why_not_.empty()) notice(why_not_);
          sendAllAway(interrupted);
          throw;
        }
        failed_at_ = Clock::now();
        startAgain(sendEndingNodesAway(), /*was_lost=*/false);
      } catch (const Error& error) {
        const auto* const failed = dynamic_cast<const JobFailed*>(&error);
        const bool leaves_out = failed != nullptr && mayLeaveOut(static_cast<int>(error.code()));
        if (!leaves_out && !goesOnAfter(static_cast<int>(error.code()))) {
          sendAllAway(error);
          if (error.code() == ErrorCode::kOutOfMemory && left_ > 0 && has_started_) failForMemory(error);
          throw;
        }
        checkSignals();
        failed_at_ = failed != nullptr ? failed->began() : Clock::now();
        if (leaves_out)
          leaveOut(*failed);
        else if (error.code() == ErrorCode::kNotANumber)
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
  bool goesOnAfter(int code) {
    const bool was_asked = code == static_cast<int>(ErrorCode::kRequeue) || code > 128;  // JobInterrupted
    if (code == static_cast<int>(ErrorCode::kNotANumber))
      return options_.rewinds && has_started_ && newest_step_ > step_of_rewind_;
    if (code == static_cast<int>(ErrorCode::kNoGoodCheckpoint)) return hasOlderCheckpoint();
    if (left_ == 0 || !has_started_) return false;
    if (!was_asked) return mayBeStartedAgain(static_cast<ErrorCode>(code), newest_step_ > step_of_attempt_);
    if (spec_.nodes == nullptr || spec_.nodes->wasAskedItself()) return false;
    const std::vector<JoinedNode>& nodes = spec_.nodes->nodes();
    if (std::none_of(nodes.begin(), nodes.end(), [](const JoinedNode& node) { return node.is_ending; }))
      return false;
    const std::string lack = whatEndingNodesHaveAlone();
    if (!lack.empty()) why_not_ = fmt::format("{}: the job cannot go on without it, and ends", lack);
    return lack.empty() && choose().has_value();
  }

  void sendAllAway(const Error& error) const {
    if (spec_.nodes == nullptr) return;
    const auto* const interrupted = dynamic_cast<const JobInterrupted*>(&error);
    spec_.nodes->dismiss(interrupted != nullptr ? interrupted->exitCode() : static_cast<int>(error.code()),
                         error.message());
  }

  // Nodes with ranks in this attempt, and in none before it that came as far as having loaded all.
  std::vector<int> newcomers() const {
    std::vector<int> numbers;
    for (const int number : std::set<int>(spec_.node_of_rank.begin(), spec_.node_of_rank.end())) {
      if (spec_.nodes->isHere(number) && !proven_.contains(spec_.nodes->nodes()[number].control_rank))
        numbers.push_back(number);
    }
    return numbers;
  }

  // Whether it may be for a newcomer's files, disk or ports that this attempt has ended so: the others have
  // shown that theirs are good.
  bool mayLeaveOut(int code) const {
    if (proven_.empty() || loaded_ >= std::ssize(spec_.node_of_rank) || left_out_ >= kMostLeftOut)
      return false;
    const auto error = static_cast<ErrorCode>(code);
    const bool is_of_its_host = error == ErrorCode::kVersionMismatch || error == ErrorCode::kMissingInput ||
                                error == ErrorCode::kConfiguration || error == ErrorCode::kDiskFull ||
                                error == ErrorCode::kAddressInUse;
    return is_of_its_host && !newcomers().empty();
  }

  // Those newcomers whose error it is; all where it is of none of them.
  void leaveOut(const JobFailed& error) {
    NodePool& nodes = *spec_.nodes;
    std::vector<int> out = newcomers();
    const auto has_failed = [&](int number) {
      return std::ranges::count(error.daemons(), nodes.nodes()[number].control_rank) > 0;
    };
    if (std::ranges::any_of(out, has_failed))
      std::erase_if(out, [&](int number) { return !has_failed(number); });
    std::string names;
    for (const int number : out) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", nodes.nameOf(number));
      nodes.sendAway(number, static_cast<int>(error.code()),
                     fmt::format("the job goes on without this node: {}", error.message()));
    }
    left_out_ += static_cast<int>(out.size());
    forgetProcesses();
    const std::string where = chooseAgain(error.message());
    notice(fmt::format("left out: {}: {}{}", names, error.message(), where));
  }

  std::string sendEndingNodesAway() {
    std::string names;
    for (int number = 0; number < std::ssize(spec_.nodes->nodes()); ++number) {
      if (!spec_.nodes->isHere(number) || !spec_.nodes->nodes()[number].is_ending) continue;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", spec_.nodes->nameOf(number));
      spec_.nodes->sendAway(
          number, static_cast<int>(ErrorCode::kRequeue),
          fmt::format("{}the job goes on without it",
                      newestCheckpoint(spec_.checkpoint.directory).empty() ? "" : "what it had is saved; "));
    }
    return fmt::format("{} was asked to end", names);
  }

  void checkSignals() {
    const int signal = spec_.signals == nullptr ? 0 : spec_.signals->take();
    if (signal == 0) return;
    const JobInterrupted interrupted(signal, newestCheckpoint(spec_.checkpoint.directory));
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
      if (node.control_rank >= 0 && !node.is_ending) live.push_back({number, node.devices});
    }
    if (const auto placed = chooseNodes(whole_.node_of_rank, live))
      return FewerPlan{whole_.directory, *placed, whole_.evaluation};
    for (const FewerPlan& plan : options_.fewer) {
      if (const auto placed = chooseNodes(plan.node_of_rank, live))
        return FewerPlan{plan.directory, *placed, plan.evaluation};
    }
    return std::nullopt;
  }

  // Of what the job goes on from, parts that are on nobody's disk but those of nodes that were asked to end.
  std::string whatEndingNodesHaveAlone() const {
    const std::optional<NextCheckpoint> next = nextCheckpoint(spec_.checkpoint);
    if (!next) return "";
    std::set<std::string> hosts;
    for (const JoinedNode& node : spec_.nodes->nodes()) {
      if (node.control_rank >= 0 && !node.is_ending) hosts.insert(node.host);
    }
    const std::vector<int> lacked = lackedWith(*next, hosts);
    return lacked.empty() ? "" : describeLacked(next->checkpoint, lacked);
  }

  // A plan, and places for it. Waits for nodes where those that are here are too few, or lack a part of what
  // the job goes on from: an older checkpoint that they have would lose work that is there.
  FewerPlan awaitChoice(const std::string& why) {
    NodePool& nodes = *spec_.nodes;
    const Clock::time_point end = Clock::now() + nodes.wait();
    std::optional<std::vector<int>> asked;  // control ranks of the nodes
    std::optional<FewerPlan> chosen;
    std::optional<NextCheckpoint> next;
    std::vector<int> lacked;
    for (std::string said;;) {
      std::vector<int> here;
      for (const JoinedNode& node : nodes.nodes()) here.push_back(node.control_rank);
      if (asked != here) {
        asked = std::move(here);
        next = nextCheckpoint(spec_.checkpoint);
        lacked = next ? lackedByNodes(*next, nodes, hear_) : std::vector<int>();
        chosen = lacked.empty() ? choose() : std::nullopt;
      }
      if (chosen) return *chosen;
      const std::string text = lacked.empty() ? describeShortage(why) : describeLack(*next, lacked, why);
      if (text != said) notice(said = text);
      checkSignals();
      if (Clock::now() >= end) {
        if (!lacked.empty()) giveUp(ErrorCode::kRequeue, describeEndOfWait(*next, lacked, why));
        giveUp(ErrorCode::kPeerUnavailable,
               fmt::format("no node has joined within {} s after this: {}", nodes.wait().count(), why));
      }
      nodes.listen(kListen, hear_);
    }
  }

  std::string describeLack(const NextCheckpoint& next, const std::vector<int>& lacked,
                           const std::string& why) const {
    return fmt::format("{}; {}: waiting {} s for a node there: {}", why,
                       describeLacked(next.checkpoint, lacked), spec_.nodes->wait().count(),
                       spec_.nodes->joinCommand());
  }

  std::string describeEndOfWait(const NextCheckpoint& next, const std::vector<int>& lacked,
                                const std::string& why) const {
    return fmt::format(
        "{}, and no node has come with it within {} s after this: {}. The same command goes on when that "
        "host is there again, or has been copied from: {}. If its disk is lost, name another --checkpoint "
        "folder to begin anew, best one that all hosts share",
        describeLacked(next.checkpoint, lacked), spec_.nodes->wait().count(), why,
        describeElsewhere(next.checkpoint, lacked));
  }

  // Sets the job's plan and places. What people should know of them, as the end of a line.
  std::string chooseAgain(const std::string& why) {
    NodePool& nodes = *spec_.nodes;
    nodes.callRoll(why, hear_);
    const FewerPlan chosen = awaitChoice(why);
    spec_.plan_directory = chosen.directory;
    spec_.plan_mark = marks_.at(chosen.directory);
    spec_.node_of_rank = chosen.node_of_rank;
    spec_.evaluation = chosen.evaluation;
    std::set<int> used(chosen.node_of_rank.begin(), chosen.node_of_rank.end());
    std::string names;
    for (const int number : used)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", nodes.nameOf(number));
    return fmt::format(
        "; going on on {}{}", names,
        chosen.directory == whole_.directory
            ? ""
            : fmt::format(" with the plan for {}, {}", counted(std::ssize(chosen.node_of_rank), "device"),
                          chosen.directory));
  }

  std::string describeShortage(const std::string& why) const {
    int devices = 0;
    for (const JoinedNode& node : spec_.nodes->nodes())
      devices += node.control_rank >= 0 && !node.is_ending ? node.devices : 0;
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
    if (event.kind == JobProgress::Kind::kLoaded) noteLoaded();
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

  void noteLoaded() {
    if (++loaded_ < std::ssize(spec_.node_of_rank) || spec_.nodes == nullptr) return;
    for (const int number : spec_.node_of_rank) proven_.insert(spec_.nodes->nodes()[number].control_rank);
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
    forgetProcesses();
    if (lost_at_) endRestart("; and again before a step was done");
    step_of_last_restart_ = newest_step_;
    lost_at_ = failed_at_;
    lost_ = why;
  }

  void forgetProcesses() {
    if (!pids_.empty()) pids_before_ = std::exchange(pids_, {});
    stayed_ = 0;
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
  std::map<std::string, std::string> marks_;  // planMark by plan directory, when the job began
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
  int64_t loaded_ = 0;                        // ranks, in this attempt
  std::set<int> proven_;                      // control ranks of nodes that took part when all had loaded
  int left_out_ = 0;                          // nodes
  std::string why_not_;                       // this attempt, which nodes were asked to end, is the last one
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
