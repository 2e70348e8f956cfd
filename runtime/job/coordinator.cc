#include "runtime/job/coordinator.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>

#include "ir/base/ids_format.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/step_runner.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/files/content_hash.h"
#include "runtime/files/weight_check.h"
#include "runtime/identity/plan_mark.h"
#include "runtime/identity/plan_programs.h"
#include "runtime/job/coordinator_parts.h"
#include "runtime/job/node_placement.h"
#include "runtime/job/node_pool.h"
#include "runtime/job/trace_merge.h"
#include "runtime/job/worker_placement.h"
#include "runtime/machine/limits.h"
#include "runtime/messages/control_types.h"
#include "transport/control/control.h"
#include "transport/control/control_server.h"

namespace pipeshard {
namespace {

using std::chrono::milliseconds;

// How far ahead of the slowest worker's steps others are granted, where a checkpoint may have to follow;
// seconds.
constexpr double kLead = 0.2;
// What one request for batches of held-out data takes, about; seconds.
constexpr double kEvaluationTurn = 0.2;
// For nodes to hand over what their ranks have recorded.
constexpr milliseconds kTraceTime{5'000};

std::string newJobId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// Of a command that has read more of the plan than the job does, or runs it once more.
void requireAskedPlan(const JobSpec& spec) {
  requireSamePlan(spec.plan_directory, spec.plan_mark, newestCheckpoint(spec.checkpoint.directory));
}

}  // namespace

Coordinator::Coordinator(const JobSpec& spec, const JobProgressCallback& progress)
    : spec_(spec),
      progress_(progress),
      folder_(spec.plan_directory),
      ranks_(static_cast<int>(folder_->ranks())),
      workers_(ranks_) {
  signals_ = spec.signals;
  if (signals_ == nullptr && spec.handle_signals) signals_ = &own_signals_.emplace();
  result_.ranks.resize(ranks_);
  programs_ = requireSoundPrograms(
      *folder_,
      [this](const std::string& text) { report({.kind = JobProgress::Kind::kNotice, .text = text}); },
      [this] { endWhileReading(); });
  job_id_ = spec.nodes == nullptr ? newJobId() : spec.nodes->job();
  if (spec.nodes != nullptr) spec.nodes->beginAttempt(ranks_);
  if (!spec_.checkpoint.directory.empty()) openCheckpoints();
  last_step_ = std::max(spec.steps, result_.resumed_step);
  granted_ = result_.resumed_step;
  if (spec_.check_replicas > 0) replica_check_.emplace(ranks_);
  stragglers_.emplace(whoDoTheSame(*folder_));
  requireAskedPlan(spec);  // all that was read is of it
  if (hasWork()) makePlacement();
  holdPrograms();
}

// Another plan may be put into the folder: from here on nothing of it is read. What workers load is compared.
void Coordinator::holdPrograms() {
  if (spec_.trace != nullptr) traced_ = foldersToTrace(*folder_, spec_.evaluation.asked());
  if (keeper_) keeper_->holdPrograms(folder_->takeSet());
  folder_.reset();
}

// Batches that are sent once, in order: read here, for all ranks.
void Coordinator::openPipe() {
  feed_ = std::make_unique<LoaderFeed>(spec_.data, folder_->program(RankId(0)).inputs,
                                       shorterInputs(*folder_, RankId(0)), result_.resumed_step, last_step_);
}

void Coordinator::makePlacement() {
  const int here = spec_.nodes == nullptr ? ranks_ : 0;
  requireLimits({here, here == 0 ? 1 : threadsPerWorker(spec_.threads_per_worker, here), ranks_,
                 hasMemoryLimit() ? 2 * tensorBytesOfLargestRank(*folder_) : 0});
  if (isPipe(spec_.data)) openPipe();
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
  if (!spec_.dump_directory.empty())
    dumps_.emplace(std::filesystem::absolute(spec_.dump_directory), spec_.nodes != nullptr);
  WorkerGroupSpec group{
      spec_.worker_executable, spec_.worker_arguments, spec_.threads_per_worker, spec_.plan_directory, {},
      commonOptions()};
  if (spec_.nodes != nullptr) {
    placement_ = placeOnNodes(spec_, std::move(group), progress_,
                              keeper_ ? std::optional(keeper_->place()) : std::nullopt, feed_.get());
    return;
  }
  group.ranks = workers_.ids();
  group.kept = spec_.kept_workers;
  placement_ = placeHere(std::move(group));
}

WorkerOptions Coordinator::commonOptions() const {
  WorkerOptions options;
  options.endpoint = server_->endpoint();
  options.job = job_id_;
  options.generation = spec_.nodes == nullptr ? 0 : spec_.nodes->generation();
  options.attempt = attempt();
  if (keys_) options.keys = keys_->clientKeys();
  options.node_of_rank = spec_.node_of_rank;
  options.device = spec_.device;
  options.data_plane = spec_.data_plane;
  options.data = spec_.data;
  if (feed_) {
    options.data.path = options.data.command = "";
    options.data.ring_descriptor = spec_.nodes == nullptr ? feed_->ring().descriptor() : -1;
  }
  options.evaluation = spec_.evaluation;
  options.check_finite = spec_.check_finite;
  options.find_nan = spec_.find_nan;
  options.operators = spec_.operators && hasSteps();
  options.log_directory = spec_.log_directory;
  if (dumps_) {
    options.dump_directory = std::filesystem::absolute(spec_.dump_directory).string();
    options.dump_probe = dumps_->probe();
  }
  options.dump = spec_.dump;
  options.adopt_directory = spec_.adopt_directory;
  options.adopt_ranks = spec_.adopt_ranks;
  options.transfer_timeout_ms = spec_.transfer_timeout.count();
  if (keeper_ && keeper_->resumed())
    options.resume = std::filesystem::absolute(keeper_->resumed()->directory).string();
  if (spec_.trace != nullptr) options.trace_steps = spec_.trace_steps;
  return options;
}

int Coordinator::attempt() const { return spec_.nodes == nullptr ? 0 : spec_.nodes->attempt(); }

JobResult Coordinator::run() {
  if (!hasWork()) return std::move(result_);  // the checkpoint has it all
  const Clock::time_point start = startWorkers();
  waitForLoading(start);
  requireSpaceToWrite();
  clearDumps();
  if ((keeper_ || spec_.check_weights) && hasSteps()) sendToAll(control::kWatch, {{"at_end", !keeper_}});
  result_.load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  for (Worker& worker : workers_) {
    worker.last_progress = worker.last_moved = Clock::now();
    worker.steps_done = result_.resumed_step;
  }
  if (spec_.evaluation.isFirst(result_.resumed_step)) evaluate(result_.resumed_step);
  for (int64_t step = result_.resumed_step + 1; step <= last_step_; ++step) {
    grantSteps(step - 1);
    waitFor([&](const Worker& worker) { return worker.steps_done >= step; },
            Clock::now() + spec_.step_timeout, fmt::format("step {}", step));
    finishStep(step);
    if (step < last_step_ && spec_.evaluation.isDue(step)) evaluate(step);
  }
  return finish();
}

// At least what one rank has to write: more is not known before it is written.
void Coordinator::requireSpaceToWrite() {
  uint64_t kept = 0, parameters = 0;
  for (const RankResult& rank : result_.ranks) {
    kept = std::max<uint64_t>(kept, rank.memory.parameters + rank.memory.states);
    parameters = std::max<uint64_t>(parameters, rank.memory.parameters);
  }
  try {
    if (keeper_ && hasSteps()) requireSpace(spec_.checkpoint.directory, kept, "a checkpoint");
    if (!spec_.dump_directory.empty() && spec_.dump.parameters)
      requireSpace(spec_.dump_directory, parameters, "the dump of a step");
  } catch (const Error& error) {
    failJob({error.code(), error.message()});
  }
}

// What the ranks are still writing, and their end.
JobResult Coordinator::finish() {
  if (keeper_ && keeper_->lastBegun() != last_step_) save(last_step_);
  if (spec_.evaluation.asked() && last_evaluated_ != last_step_) evaluate(last_step_);
  sendToAll(control::kFinish, nlohmann::json::object());
  const auto is_saving = [&] { return keeper_ && (keeper_->isSaving() || placement_->isPublishing()); };
  waitFor([&](const Worker& worker) { return worker.finished && !is_saving(); },
          Clock::now() + spec_.step_timeout, "the end of the last step");
  if (keeper_ && !keeper_->failure().empty()) {
    failJob({ErrorCode::kDiskFull, fmt::format("step {} is done, but its weights could not be saved: {}",
                                               last_step_, keeper_->failure())});
  }
  if (interrupted_by_ != 0) {
    const JobInterrupted interrupted(interrupted_by_, result_.checkpoint);
    stopWorkers(interrupted.exitCode(), interrupted.message());
    throw interrupted;
  }
  stopWorkers(0, "");
  return std::move(result_);
}

void Coordinator::openCheckpoints() {
  // Ranks of an earlier attempt that cannot be reached must not write where this one's do.
  keeper_.emplace(
      spec_, *folder_, fmt::format("{}{}", job_id_, attempt() > 1 ? fmt::format("-{}", attempt()) : ""),
      ranks_,
      [this](const std::string& text) { report({.kind = JobProgress::Kind::kNotice, .text = text}); });
  if (!keeper_->resumed()) return;
  result_.resumed_step = keeper_->resumed()->step;
  result_.checkpoint = keeper_->resumed()->directory;
  report({.kind = JobProgress::Kind::kResumed, .step = result_.resumed_step, .text = result_.checkpoint});
}

// Without checkpoints, all steps at once. With them, no further than a checkpoint may have to follow, and a
// little more than what hides the messages' way: a job that is asked to end does what it has granted.
void Coordinator::grantSteps(int64_t done) {
  int64_t ahead = last_step_ - done;
  if (keeper_ || replica_check_) {
    ahead = std::min<int64_t>(ahead,
                              2 + static_cast<int64_t>(std::min(kLead / std::max(last_seconds_, 1e-6), 1e4)));
  }
  ahead = std::min(ahead, spec_.evaluation.nextDue(done) - done);
  while (granted_ < done + ahead) {
    int64_t last = std::min(done + ahead, keeper_ ? keeper_->lastBeforeSave(granted_) : last_step_);
    last = std::min(last, nextReplicaCheck(granted_));
    sendToAll(control::kRun, {{"first", granted_ + 1}, {"last", last}});
    granted_ = last;
    if (last == nextReplicaCheck(last - 1)) sendToAll(control::kCheck, {{"step", last}});
    if (keeper_ && keeper_->isDue(last)) save(last);
  }
}

int64_t Coordinator::nextReplicaCheck(int64_t after) const {
  if (!replica_check_) return std::numeric_limits<int64_t>::max();
  return (after / spec_.check_replicas + 1) * spec_.check_replicas;
}

void Coordinator::save(int64_t step) {
  const std::string folder = std::filesystem::absolute(keeper_->begin(step)).string();
  const SaveShares& shares = keeper_->shares([&](RankId rank) { return placement_->diskOf(rank); });
  for (const RankId rank : workers_.ids()) {
    send(rank, control::kSave,
         {{"step", step},
          {"folder", folder},
          {"buffers", savedBuffersJson(shares.buffers[rank])},
          {"last", step == last_step_}});
  }
}

// Batches are asked for in turns that are short, so that a job that is asked to end does so soon.
void Coordinator::evaluate(int64_t step) {
  const Clock::time_point start = Clock::now();
  last_evaluated_ = step;
  evaluated_ = {};
  for (Worker& worker : workers_) worker.batches_done = 0;
  int64_t count = 1;
  for (int64_t first = 1; first <= spec_.evaluation.batches; first += count) {
    if (interrupted_by_ != 0) return tellUnevaluated(step);
    if (first > 1) {
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      const double fitting = kEvaluationTurn / std::max(seconds / static_cast<double>(first - 1), 1e-6);
      count = std::clamp<int64_t>(static_cast<int64_t>(fitting), 1, spec_.evaluation.batches - first + 1);
    }
    const int64_t last = first + count - 1;
    sendToAll(control::kEvaluate, {{"first", first}, {"last", last}});
    waitFor([&](const Worker& worker) { return worker.batches_done >= last; },
            Clock::now() + spec_.step_timeout, fmt::format("the evaluation after step {}", step));
  }
  report({.kind = JobProgress::Kind::kEvaluated,
          .step = step,
          // of every batch, whatever number of ranks have told it
          .loss = evaluated_.mean() *
                  (spec_.evaluation.adds ? static_cast<double>(spec_.evaluation.batches) : 1.0),
          .exact = spec_.evaluation.exact,
          .seconds = std::chrono::duration<double>(Clock::now() - start).count()});
}

void Coordinator::tellUnevaluated(int64_t step) {
  const bool is_due = spec_.evaluation.isDue(step), is_last = step >= spec_.steps;
  if (!is_due && !is_last) return;
  report({.kind = JobProgress::Kind::kNotice,
          .text = fmt::format("asked to end: held-out data were not evaluated after step {}{}", step,
                              is_last ? ", the last one" : "; the run that goes on begins with that")});
}

// The steps that are granted are done and saved; so nothing is lost.
void Coordinator::endEarly(int signal) {
  interrupted_by_ = signal;
  last_step_ = granted_;
  report({.kind = JobProgress::Kind::kNotice,
          .text =
              fmt::format("asked to end: finishing step {} and saving; once more ends at once", last_step_)});
}

// A host's ranks are there when it has started them: their silence counts from then on, however long another
// host takes.
void Coordinator::noteStarted() {
  for (const RankId rank : workers_.ids()) {
    Worker& worker = workers_[rank];
    if (worker.started || placement_->pid(rank) == 0) continue;
    worker.started = true;
    worker.last_heard = Clock::now();
  }
}

Coordinator::Clock::time_point Coordinator::startWorkers() {
  const Clock::time_point begin = Clock::now();
  Clock::time_point start = Clock::now();
  while (!placement_->start()) {
    start = Clock::now();
    if (std::optional<Failure> failure = lookAround()) failJob(std::move(*failure));
    noteStarted();
    if (Clock::now() > begin + placement_->startTimeout())
      failJob({ErrorCode::kPeerUnavailable, placement_->describeMissing()});
  }
  noteStarted();
  for (const RankId rank : workers_.ids()) {
    const int pid = placement_->pid(rank);
    result_.ranks[rank].pid = pid;
    report({.kind = JobProgress::Kind::kStarted, .rank = rank, .pid = pid, .host = placement_->host(rank)});
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

// Of steps that take a rank less than their reports take here, a lead is counted by these: a job that is
// asked to end finishes what it has granted.
void Coordinator::measurePace() {
  constexpr double kWindow = 0.05;
  const Clock::time_point now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - pace_start_).count();
  ++pace_steps_;
  if (elapsed < kWindow) return;
  if (pace_start_ != Clock::time_point()) pace_ = elapsed / static_cast<double>(pace_steps_);
  pace_start_ = now;
  pace_steps_ = 0;
}

void Coordinator::finishStep(int64_t step) {
  OpenStep open = std::move(open_steps_.front());
  open_steps_.pop_front();
  ++result_.steps_done;
  if (feed_) feed_->release(step);
  StepResult& result = open.result;
  result.step = step;
  measurePace();
  last_seconds_ = std::max(result.seconds, pace_);
  if (!result.applied) leaveOut(result);
  for (std::string& path : open.dumps) {
    if (!path.empty()) result_.dump_files.push_back(std::move(path));
  }
  report({.kind = JobProgress::Kind::kStep,
          .step = step,
          .loss = result.loss,
          .seconds = result.seconds,
          .result = &result});
  nameStraggler(result);
  if (std::ssize(result_.steps) >= spec_.kept_steps) result_.steps.erase(result_.steps.begin());
  if (spec_.kept_steps > 0) result_.steps.push_back(std::move(result));
}

void Coordinator::nameStraggler(const StepResult& result) {
  const std::optional<Straggler> found =
      stragglers_ ? stragglers_->take(result.compute_seconds) : std::nullopt;
  if (!found) return;
  report({.kind = JobProgress::Kind::kNotice,
          .text = fmt::format(
              "straggler: {} computes {:.1f} times as long as {}, {:.3g} s of a step; the others wait "
              "for it",
              nameOf(found->rank), found->times, found->than_before ? "before" : "ranks that do the same",
              found->seconds)});
}

// Beside those who started them: a node daemon that is stopped itself cannot end its workers.
void Coordinator::abortWorkers() {
  for (RankId rank : workers_.ids()) {
    if (server_->isRegistered(rank.index())) send(rank, control::kAbort, nlohmann::json::object());
  }
}

bool Coordinator::isDone(int64_t step) const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [&](const Worker& worker) { return worker.steps_done >= step; });
}

// Of those that ranks have done beyond the one that was waited for.
void Coordinator::finishDoneSteps() {
  while (!open_steps_.empty() && isDone(result_.resumed_step + result_.steps_done + 1))
    finishStep(result_.resumed_step + result_.steps_done + 1);
}

// The job, with another attempt to run it.
bool Coordinator::goesOnAfter(int exit_code) const {
  if (spec_.nodes != nullptr) return spec_.nodes->keepsNodesAfter(exit_code);
  return spec_.goes_on_after && spec_.goes_on_after(exit_code);
}

void Coordinator::failJob(Failure first) {
  std::optional<Failure> failure = std::move(first);
  const Clock::time_point end = Clock::now() + placement_->causeWindow();
  const auto is_settled = [&] { return failure->is_cause && isDone(failure->done); };
  while (!is_settled() && Clock::now() < end) keepFirstCause(failure, lookAround());
  finishDoneSteps();
  if (goesOnAfter(static_cast<int>(failure->code))) {
    placement_->keep();
  } else {
    abortWorkers();
    placement_->kill();
  }
  release(static_cast<int>(failure->code), failure->message);
  throw JobFailed(failure->code, failure->message, failure->began, failure->daemons);
}

void Coordinator::stopWorkers(int exit_code, const std::string& message) {
  if (goesOnAfter(exit_code)) {
    placement_->keep();
    return release(exit_code, message);
  }
  for (RankId rank : workers_.ids()) {
    if (server_->isRegistered(rank.index())) send(rank, control::kStop, nlohmann::json::object());
  }
  const Clock::time_point end = Clock::now() + spec_.stop_timeout;
  while (!placement_->allEnded() && Clock::now() < end) {
    const std::vector<int> descriptors = placement_->descriptors();
    const ControlEvent event = server_->poll(kLookAround, descriptors);
    if (event.message && isNodeRank(event.message->rank)) placement_->handleMessage(*event.message);
    placement_->takeEnds();
    placement_->look(Clock::duration::zero());
  }
  if (!placement_->allEnded()) placement_->kill();
  release(exit_code, message);
}

// All workers have ended, or have been told to. A trace that cannot be had does not change how the job ends.
void Coordinator::release(int exit_code, const std::string& message) {
  for (const RankId rank : placement_->unkillable()) {
    report({.kind = JobProgress::Kind::kNotice,
            .text = fmt::format("unkillable: {}{}; it goes when the kernel lets it", nameOf(rank),
                                describe(placement_->processState(rank)))});
  }
  if (spec_.trace != nullptr) {
    try {
      const WorkerPlacement::Recorded recorded = placement_->collectTraces(Clock::now() + kTraceTime);
      *spec_.trace = mergeTrace(traced_, recorded.bytes, recorded.clocks);
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
  requireAskedPlan(spec);
  checkWeightFiles(spec.plan_directory, [&](const std::string& text) {
    if (progress) progress({.kind = JobProgress::Kind::kNotice, .text = text});
  });
  return Coordinator(spec, progress).run();
}

}  // namespace pipeshard
