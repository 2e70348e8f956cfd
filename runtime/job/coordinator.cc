#include "runtime/job/coordinator.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>

#include "ir/base/ids_format.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/weight_check.h"
#include "runtime/job/control_types.h"
#include "runtime/job/coordinator_parts.h"
#include "runtime/job/node_placement.h"
#include "runtime/job/node_pool.h"
#include "runtime/job/trace_merge.h"
#include "runtime/job/worker_placement.h"
#include "transport/control/control.h"
#include "transport/control/control_server.h"

namespace pipeshard {
namespace {

using std::chrono::milliseconds;

// How far ahead of the slowest worker's steps others are granted, where a checkpoint may have to follow;
// seconds.
constexpr double kLead = 0.2;
// For nodes to hand over what their ranks have recorded.
constexpr milliseconds kTraceTime{5'000};

std::string newJobId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

}  // namespace

Coordinator::Coordinator(const JobSpec& spec, const JobProgressCallback& progress)
    : spec_(spec), progress_(progress), ranks_(countRanks(spec.plan_directory)), workers_(ranks_) {
  signals_ = spec.signals;
  if (signals_ == nullptr && spec.handle_signals) signals_ = &own_signals_.emplace();
  result_.ranks.resize(ranks_);
  job_id_ = spec.nodes == nullptr ? newJobId() : spec.nodes->job();
  if (!spec_.checkpoint.directory.empty()) openCheckpoints();
  last_step_ = std::max(spec.steps, result_.resumed_step);
  granted_ = result_.resumed_step;
  if (last_step_ > result_.resumed_step) makePlacement();
}

void Coordinator::makePlacement() {
  if (spec_.nodes != nullptr) {
    server_ = &spec_.nodes->server();
    keys_ = spec_.nodes->keys();
    if (std::ssize(spec_.node_of_rank) != ranks_) {
      fail(ErrorCode::kInternal, "{} ranks, but {} are placed on nodes", ranks_, spec_.node_of_rank.size());
    }
  } else {
    keys_ = makeJobKeys();
    own_server_ = ControlServer::bind({.job_id = job_id_, .keys = keys_, .schema = workerMessages()});
    server_ = own_server_.get();
  }
  if (!spec_.dump_directory.empty()) {
    makeFolder(spec_.dump_directory);
    dump_lock_ = FolderLock(std::filesystem::path(spec_.dump_directory) / "lock", spec_.dump_directory,
                            "another job writes its tensors into");
  }
  WorkerGroupSpec group{
      spec_.worker_executable, spec_.worker_arguments, spec_.threads_per_worker, spec_.plan_directory, {},
      commonOptions()};
  if (spec_.nodes != nullptr) {
    placement_ = placeOnNodes(spec_, std::move(group), progress_);
    return;
  }
  group.ranks = workers_.ids();
  placement_ = placeHere(std::move(group));
}

WorkerOptions Coordinator::commonOptions() const {
  WorkerOptions options;
  options.endpoint = server_->endpoint();
  options.job = job_id_;
  options.generation = spec_.nodes == nullptr ? 0 : spec_.nodes->generation();
  if (keys_) options.keys = keys_->clientKeys();
  options.node_of_rank = spec_.node_of_rank;
  options.data = spec_.data;
  options.check_finite = spec_.check_finite;
  options.dump_directory = spec_.dump_directory;
  options.dump = spec_.dump;
  options.adopt_directory = spec_.adopt_directory;
  options.adopt_ranks = spec_.adopt_ranks;
  options.transfer_timeout_ms = spec_.transfer_timeout.count();
  if (keeper_ && keeper_->resumed())
    options.resume = std::filesystem::absolute(keeper_->resumed()->directory).string();
  if (spec_.trace != nullptr) options.trace_steps = spec_.trace_steps;
  return options;
}

JobResult Coordinator::run() {
  if (last_step_ == result_.resumed_step) return std::move(result_);  // the checkpoint has them all
  const Clock::time_point start = startWorkers();
  waitFor([](const Worker& worker) { return worker.loaded; }, start + spec_.load_timeout,
          "loading the program");
  result_.load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (Worker& worker : workers_) {
    worker.last_progress = Clock::now();
    worker.steps_done = result_.resumed_step;
  }
  for (int64_t step = result_.resumed_step + 1; step <= last_step_; ++step) {
    grantSteps(step - 1);
    waitFor([&](const Worker& worker) { return worker.steps_done >= step; },
            Clock::now() + spec_.step_timeout, fmt::format("step {}", step));
    finishStep(step);
  }
  return finish();
}

// What the ranks are still writing, and their end.
JobResult Coordinator::finish() {
  if (keeper_ && keeper_->lastBegun() != last_step_) save(last_step_);
  sendToAll("finish", nlohmann::json::object());
  waitFor([&](const Worker& worker) { return worker.finished && !(keeper_ && keeper_->isSaving()); },
          Clock::now() + spec_.step_timeout, "the end of the last step");
  if (keeper_ && !keeper_->failure().empty()) {
    failJob({ErrorCode::kDiskFull, fmt::format("step {} is done, but its weights could not be saved: {}",
                                               last_step_, keeper_->failure())});
  }
  if (interrupted_by_ != 0) {
    const JobInterrupted interrupted(interrupted_by_, result_.checkpoint);
    stopWorkers(static_cast<int>(interrupted.code()), interrupted.message());
    throw interrupted;
  }
  stopWorkers(0, "");
  return std::move(result_);
}

void Coordinator::openCheckpoints() {
  keeper_.emplace(spec_, job_id_, ranks_, [this](const std::string& text) {
    report({.kind = JobProgress::Kind::kNotice, .text = text});
  });
  if (!keeper_->resumed()) return;
  result_.resumed_step = keeper_->resumed()->step;
  result_.checkpoint = keeper_->resumed()->directory;
  report({.kind = JobProgress::Kind::kResumed, .step = result_.resumed_step, .text = result_.checkpoint});
}

// Without checkpoints, all steps at once. With them, no further than a checkpoint may have to follow, and a
// little more than what hides the messages' way: a job that is asked to end does what it has granted.
void Coordinator::grantSteps(int64_t done) {
  int64_t ahead = last_step_ - done;
  if (keeper_) {
    ahead = std::min<int64_t>(ahead,
                              2 + static_cast<int64_t>(std::min(kLead / std::max(last_seconds_, 1e-6), 1e4)));
  }
  while (granted_ < done + ahead) {
    const int64_t last = std::min(done + ahead, keeper_ ? keeper_->lastBeforeSave(granted_) : last_step_);
    sendToAll("run", {{"first", granted_ + 1}, {"last", last}});
    granted_ = last;
    if (keeper_ && keeper_->isDue(last)) save(last);
  }
}

void Coordinator::save(int64_t step) {
  const std::optional<std::string> folder = keeper_->begin(step);
  if (folder) {
    sendToAll("save", {{"step", step}, {"folder", std::filesystem::absolute(*folder).string()}});
  }
}

// The steps that are granted are done and saved; so nothing is lost.
void Coordinator::endEarly(int signal) {
  interrupted_by_ = signal;
  last_step_ = granted_;
  report({.kind = JobProgress::Kind::kNotice,
          .text =
              fmt::format("asked to end: finishing step {} and saving; once more ends at once", last_step_)});
}

Coordinator::Clock::time_point Coordinator::startWorkers() {
  const Clock::time_point deadline = Clock::now() + placement_->startTimeout();
  Clock::time_point start = Clock::now();
  while (!placement_->start()) {
    start = Clock::now();
    if (std::optional<Failure> failure = lookAround()) failJob(std::move(*failure));
    if (Clock::now() > deadline) failJob({ErrorCode::kPeerUnavailable, placement_->describeMissing()});
  }
  for (RankId rank : workers_.ids()) {
    Worker& worker = workers_[rank];
    worker.started = true;
    worker.last_heard = Clock::now();
    result_.ranks[rank].pid = placement_->pid(rank);
    report({.kind = JobProgress::Kind::kStarted,
            .rank = rank,
            .pid = placement_->pid(rank),
            .host = placement_->host(rank)});
  }
  return start;
}

void Coordinator::send(RankId rank, std::string_view type, const nlohmann::json& body) {
  try {
    server_->send(rank.index(), type, body);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kPeerUnavailable) throw;
  }
}

void Coordinator::sendToAll(std::string_view type, const nlohmann::json& body) {
  for (RankId rank : workers_.ids()) send(rank, type, body);
}

std::string Coordinator::nameOf(RankId rank) const {
  return fmt::format("worker of rank {} (host {}, pid {})", rank, placement_->host(rank),
                     placement_->pid(rank));
}

void Coordinator::finishStep(int64_t step) {
  OpenStep open = std::move(open_steps_.front());
  open_steps_.pop_front();
  ++result_.steps_done;
  StepResult& result = open.result;
  result.step = step;
  last_seconds_ = result.seconds;
  for (std::string& path : open.dumps) {
    if (!path.empty()) result_.dump_files.push_back(std::move(path));
  }
  report({.kind = JobProgress::Kind::kStep,
          .step = step,
          .loss = result.loss,
          .seconds = result.seconds,
          .result = &result});
  if (std::ssize(result_.steps) >= spec_.kept_steps) result_.steps.erase(result_.steps.begin());
  if (spec_.kept_steps > 0) result_.steps.push_back(std::move(result));
}

// Beside those who started them: a node daemon that is stopped itself cannot end its workers.
void Coordinator::abortWorkers() {
  for (RankId rank : workers_.ids()) {
    if (server_->isRegistered(rank.index())) send(rank, "abort", nlohmann::json::object());
  }
}

void Coordinator::failJob(Failure first) {
  std::optional<Failure> failure = std::move(first);
  const Clock::time_point end = Clock::now() + placement_->causeWindow();
  while (!failure->is_cause && Clock::now() < end) keepFirstCause(failure, lookAround());
  abortWorkers();
  placement_->kill();
  release(static_cast<int>(failure->code), failure->message);
  throw Error(failure->code, failure->message);
}

void Coordinator::stopWorkers(int exit_code, const std::string& message) {
  for (RankId rank : workers_.ids()) {
    if (server_->isRegistered(rank.index())) send(rank, "stop", nlohmann::json::object());
  }
  const Clock::time_point end = Clock::now() + spec_.stop_timeout;
  while (!placement_->allEnded() && Clock::now() < end) {
    const std::vector<int> descriptors = placement_->descriptors();
    const ControlEvent event = server_->poll(kLookAround, descriptors);
    if (event.message && event.message->rank >= kFirstNodeRank) placement_->handleMessage(*event.message);
    placement_->takeEnds();
    placement_->look(Clock::duration::zero());
  }
  if (!placement_->allEnded()) placement_->kill();
  release(exit_code, message);
}

// All workers have ended, or have been told to. A trace that cannot be had does not change how the job ends.
void Coordinator::release(int exit_code, const std::string& message) {
  if (spec_.trace != nullptr) {
    try {
      const WorkerPlacement::Recorded recorded = placement_->collectTraces(Clock::now() + kTraceTime);
      *spec_.trace = mergeTrace(spec_.plan_directory, recorded.bytes, recorded.clocks);
    } catch (const Error& error) {
      report({.kind = JobProgress::Kind::kNotice,
              .text = fmt::format("there is no trace: {}", error.message())});
    }
  }
  placement_->release(exit_code, message);
}

JobResult runJob(const JobSpec& spec, const JobProgressCallback& progress) {
  if (spec.trace != nullptr && spec.trace_steps < 1)
    fail(ErrorCode::kUsage, "a trace of {} steps; at least 1 is needed", spec.trace_steps);
  if (spec.steps < 1) fail(ErrorCode::kUsage, "{} steps were asked for; at least 1 is needed", spec.steps);
  checkWeightFiles(spec.plan_directory);
  return Coordinator(spec, progress).run();
}

}  // namespace pipeshard
