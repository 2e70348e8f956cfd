#include "runtime/job/coordinator.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>

#include "ir/base/ids_format.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/weight_check.h"
#include "runtime/job/child_process.h"
#include "runtime/job/control_types.h"
#include "runtime/job/node_placement.h"
#include "runtime/job/node_pool.h"
#include "runtime/job/trace_merge.h"
#include "runtime/job/worker_placement.h"
#include "transport/control/control.h"
#include "transport/control/control_server.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookAround{100};
// A worker's link answers twice a second, whatever the worker computes; silence means stopped or swapped out.
// Longer than a node's, so that a node that is lost is named rather than its workers.
constexpr milliseconds kSilence{5'000};

constexpr int kMessagesAtOnce = 256;
// For nodes to hand over what their ranks have recorded.
constexpr milliseconds kTraceTime{5'000};

struct Worker {
  bool started = false;
  Clock::time_point last_heard;
  std::string where = "starting";
  bool loaded = false;
  bool finished = false;
  int64_t steps_done = 0;
  uint64_t progress = 0;  // of its computing thread
  Clock::time_point last_progress;
};

std::string newJobId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

int64_t wholeSeconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::seconds>(duration).count();
}

class Coordinator {
 public:
  Coordinator(const JobSpec& spec, const JobProgressCallback& progress)
      : spec_(spec), progress_(progress), ranks_(countRanks(spec.plan_directory)), workers_(ranks_) {
    signals_ = spec.signals;
    if (signals_ == nullptr && spec.handle_signals) signals_ = &own_signals_.emplace();
    result_.ranks.resize(ranks_);
    result_.steps.resize(spec.steps);
    losses_.resize(result_.steps.size());
    dumps_.assign(result_.steps.size() * workers_.size(), "");
    makePlacement();
  }

  JobResult run();

 private:
  void makePlacement();
  WorkerOptions commonOptions() const;
  Clock::time_point startWorkers();  // when, not counting the wait for nodes
  void finishStep(int64_t step);
  void stopWorkers(int exit_code, const std::string& message);
  void abortWorkers();
  void release(int exit_code, const std::string& message);
  [[noreturn]] void failJob(Failure first);
  void report(const JobProgress& progress) {
    if (progress_) progress_(progress);
  }
  // A worker that is gone is no error here: its end, or its silence, is the cause, and comes with its name.
  void send(RankId rank, std::string_view type, const nlohmann::json& body);
  void sendToAll(std::string_view type, const nlohmann::json& body);
  // "worker of rank 2 (host a, pid 4711)".
  std::string nameOf(RankId rank) const;

  // One wait: at most kLookAround; then what came is worked off. The first failure, if any.
  std::optional<Failure> lookAround();
  Clock::duration forgiveAbsence();
  std::optional<Failure> handleMessage(const ControlMessage& message);
  std::optional<Failure> handleWorker(RankId rank, const ControlMessage& message);
  void handleRegister(RankId rank);
  void handleHeartbeat(Worker& worker, const nlohmann::json& body);
  void handleLoaded(RankId rank, const nlohmann::json& body);
  void handleStored(RankId sender, const nlohmann::json& body);
  std::optional<Failure> handleStep(RankId rank, Worker& worker, const nlohmann::json& body);
  std::optional<Failure> findStuckWorker() const;

  template <typename Condition>
  void waitFor(Condition condition, Clock::time_point deadline, const std::string& what) {
    const auto is_met = [&] { return std::all_of(workers_.begin(), workers_.end(), condition); };
    while (!is_met()) {
      if (std::optional<Failure> failure = lookAround()) failJob(std::move(*failure));
      if (Clock::now() < deadline || is_met()) continue;
      std::string late;
      for (RankId rank : workers_.ids()) {
        const Worker& worker = workers_[rank];
        if (!condition(worker)) late += fmt::format("\n  {}: {}", nameOf(rank), worker.where);
      }
      failJob({ErrorCode::kHang, fmt::format("{} took too long; still there:{}", what, late)});
    }
  }

  const JobSpec& spec_;
  const JobProgressCallback& progress_;
  int ranks_;
  std::unique_ptr<ControlServer> own_server_;  // of a job on this machine; nodes have joined at their pool's
  ControlServer* server_ = nullptr;
  std::string job_id_;
  std::optional<JobKeys> keys_;
  std::optional<SignalWatch> own_signals_;
  SignalWatch* signals_ = nullptr;  // nullptr: signals are not handled
  Clock::time_point last_look_ = Clock::now();
  JobResult result_;
  std::vector<std::optional<double>> losses_;  // by step
  std::vector<std::string> dumps_;             // by step, rank
  // addresses that workers have left for each other, as they came
  std::vector<nlohmann::json> stored_;
  IdVector<RankId, Worker> workers_;
  // last: its processes are killed and reaped before anything that they use goes away
  std::unique_ptr<WorkerPlacement> placement_;
};

void Coordinator::makePlacement() {
  if (spec_.nodes != nullptr) {
    server_ = &spec_.nodes->server();
    job_id_ = spec_.nodes->job();
    keys_ = spec_.nodes->keys();
    if (std::ssize(spec_.node_of_rank) != ranks_) {
      fail(ErrorCode::kInternal, "{} ranks, but {} are placed on nodes", ranks_, spec_.node_of_rank.size());
    }
  } else {
    job_id_ = newJobId();
    keys_ = makeJobKeys();
    own_server_ = ControlServer::bind({.job_id = job_id_, .keys = keys_, .schema = workerMessages()});
    server_ = own_server_.get();
  }
  if (!spec_.dump_directory.empty()) {
    std::error_code error;
    std::filesystem::create_directories(spec_.dump_directory, error);
    if (error)
      fail(ErrorCode::kDiskFull, "cannot create the folder {}: {}", spec_.dump_directory, error.message());
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
  if (spec_.trace != nullptr) options.trace_steps = spec_.trace_steps;
  return options;
}

JobResult Coordinator::run() {
  const Clock::time_point start = startWorkers();
  waitFor([](const Worker& worker) { return worker.loaded; }, start + spec_.load_timeout,
          "loading the program");
  result_.load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
  sendToAll("run", {{"first", 1}, {"last", spec_.steps}});
  for (Worker& worker : workers_) worker.last_progress = Clock::now();
  for (int64_t step = 1; step <= spec_.steps; ++step) {
    waitFor([&](const Worker& worker) { return worker.steps_done >= step; },
            Clock::now() + spec_.step_timeout, fmt::format("step {}", step));
    finishStep(step);
  }
  waitFor([](const Worker& worker) { return worker.finished; }, Clock::now() + spec_.step_timeout,
          "the end of the last step");
  stopWorkers(0, "");
  for (std::string& path : dumps_) {
    if (!path.empty()) result_.dump_files.push_back(std::move(path));
  }
  return std::move(result_);
}

Clock::time_point Coordinator::startWorkers() {
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
  StepResult& result = result_.steps[step - 1];
  result.step = step;
  result.loss = losses_[step - 1];
  report({.kind = JobProgress::Kind::kStep, .step = step, .loss = result.loss, .seconds = result.seconds});
}

// Nobody was silent while the coordinator itself did not listen (suspended, or in the caller's callback).
Clock::duration Coordinator::forgiveAbsence() {
  const Clock::time_point now = Clock::now();
  const auto absence = now - last_look_;
  last_look_ = now;
  if (absence < std::chrono::seconds(1)) return Clock::duration::zero();
  for (Worker& worker : workers_) {
    worker.last_heard += absence;
    worker.last_progress += absence;
  }
  return absence;
}

std::optional<Failure> Coordinator::lookAround() {
  std::vector<int> descriptors = placement_->descriptors();
  if (signals_) descriptors.push_back(signals_->descriptor());
  ControlEvent event = server_->poll(kLookAround, descriptors);
  // a coordinator that is suspended is, mostly, while it waits
  const Clock::duration absence = forgiveAbsence();
  if (signals_) {
    if (const int signal = signals_->take(); signal != 0) {
      const JobInterrupted interrupted(signal);
      stopWorkers(static_cast<int>(interrupted.code()), interrupted.message());
      throw interrupted;
    }
  }
  if (const auto notice = server_->takeNotice())
    report({.kind = JobProgress::Kind::kNotice, .text = *notice});
  std::optional<Failure> failure;
  // Messages first: what a worker said before it ended explains its end. Not all of them, or workers with
  // very short steps would keep the coordinator from looking at anything else.
  for (int taken = 1; event.message; ++taken) {
    keepFirstCause(failure, handleMessage(*event.message));
    event.message = taken < kMessagesAtOnce ? server_->receive(milliseconds(0)) : std::nullopt;
  }
  for (const WorkerEnd& end : placement_->takeEnds()) {
    const std::string& where = workers_[end.rank].where;
    keepFirstCause(failure,
                   Failure{ErrorCode::kPeerUnavailable,
                           fmt::format("{} {}; last seen: {}", nameOf(end.rank), end.description, where)});
  }
  keepFirstCause(failure, placement_->look(absence));
  if (!failure) failure = findStuckWorker();
  return failure;
}

std::optional<Failure> Coordinator::handleMessage(const ControlMessage& message) {
  try {
    if (message.rank >= kFirstNodeRank) return placement_->handleMessage(message);
    if (message.rank >= 0 && message.rank < ranks_) return handleWorker(RankId(message.rank), message);
  } catch (const nlohmann::json::exception& error) {
    return Failure{ErrorCode::kInternal, fmt::format("rank {}: malformed '{}' message: {}", message.rank,
                                                     message.type, error.what())};
  }
  return std::nullopt;
}

std::optional<Failure> Coordinator::handleWorker(RankId rank, const ControlMessage& message) {
  Worker& worker = workers_[rank];
  const nlohmann::json& body = message.body;
  worker.last_heard = Clock::now();
  if (message.lost_before > 0) {
    return Failure{ErrorCode::kPeerUnavailable,
                   fmt::format("{}: {} control messages were lost", nameOf(rank), message.lost_before)};
  }
  if (message.type == kFault) {
    return Failure{ErrorCode::kInternal,
                   fmt::format("{}: {}", nameOf(rank), body.at("message").get<std::string>())};
  }
  if (message.type == kRegister) {
    handleRegister(rank);
  } else if (message.type == "heartbeat") {
    handleHeartbeat(worker, body);
  } else if (message.type == "store") {
    handleStored(rank, body);
  } else if (message.type == "loaded") {
    handleLoaded(rank, body);
  } else if (message.type == "step") {
    return handleStep(rank, worker, body);
  } else if (message.type == "finished") {
    worker.finished = true;
    result_.ranks[rank].peak_resident_bytes = body.at("peak_resident_bytes").get<int64_t>();
  } else if (message.type == "error") {
    const ErrorCode code = knownErrorCode(body.at("code").get<int>());
    return Failure{code, fmt::format("{}: {}", nameOf(rank), body.at("message").get<std::string>()),
                   code != ErrorCode::kPeerUnavailable && code != ErrorCode::kHang};
  }
  return std::nullopt;
}

// What other workers have stored before this one came.
void Coordinator::handleRegister(RankId rank) {
  for (const nlohmann::json& entry : stored_) send(rank, "store", entry);
}

void Coordinator::handleStored(RankId sender, const nlohmann::json& body) {
  stored_.push_back(body);
  for (RankId rank : workers_.ids()) {
    if (rank != sender && server_->isRegistered(rank.index())) send(rank, "store", body);
  }
}

void Coordinator::handleHeartbeat(Worker& worker, const nlohmann::json& body) {
  worker.where = body.at("where").get<std::string>();
  const auto progress = body.at("progress").get<uint64_t>();
  const bool may_take_its_time = !body.at("computing").get<bool>();
  if (progress != worker.progress || may_take_its_time) worker.last_progress = Clock::now();
  worker.progress = progress;
}

void Coordinator::handleLoaded(RankId rank, const nlohmann::json& body) {
  Worker& worker = workers_[rank];
  RankResult& result = result_.ranks[rank];
  worker.loaded = true;
  worker.last_progress = Clock::now();
  worker.where = "loaded";
  result.arena_bytes = body.at("arena_bytes").get<int64_t>();
  result.constant_bytes = body.at("constant_bytes").get<int64_t>();
  result.communicator_bytes = body.at("communicator_bytes").get<int64_t>();
  const nlohmann::json& memory = body.at("memory");
  result.memory = {memory.at("parameters"),  memory.at("states"),    memory.at("gradients"),
                   memory.at("activations"), memory.at("workspace"), memory.at("padding")};
  report({.kind = JobProgress::Kind::kLoaded, .rank = rank});
}

std::optional<Failure> Coordinator::handleStep(RankId rank, Worker& worker, const nlohmann::json& body) {
  const auto step = body.at("step").get<int64_t>();
  if (step != worker.steps_done + 1 || step > spec_.steps) {
    return Failure{ErrorCode::kInternal,
                   fmt::format("rank {}: reported step {} after step {}", rank, step, worker.steps_done)};
  }
  worker.steps_done = step;
  worker.where = fmt::format("step {} done", step);
  const size_t index = step - 1;
  StepResult& result = result_.steps[index];
  result.compute_seconds.resize(ranks_);
  result.transfer_seconds.resize(ranks_);
  result.compute_seconds[rank] = body.at("compute_seconds").get<double>();
  result.transfer_seconds[rank] = body.at("transfer_seconds").get<double>();
  result.seconds = std::max(result.seconds, body.at("seconds").get<double>());
  if (body.contains("loss")) {
    losses_[index] =
        body["loss"].is_null() ? std::numeric_limits<double>::quiet_NaN() : body["loss"].get<double>();
  }
  if (body.contains("losses")) {
    for (const nlohmann::json& loss : body["losses"]) {
      result.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
    }
  }
  if (body.contains("dump")) dumps_[index * workers_.size() + rank.index()] = body["dump"].get<std::string>();
  return std::nullopt;
}

std::optional<Failure> Coordinator::findStuckWorker() const {
  const Clock::time_point now = Clock::now();
  for (RankId rank : workers_.ids()) {
    const Worker& worker = workers_[rank];
    if (!worker.started) continue;
    if (now - worker.last_heard >= kSilence) {
      return Failure{ErrorCode::kPeerUnavailable,
                     fmt::format("{} has not answered for {} s{}; last seen: {}", nameOf(rank),
                                 wholeSeconds(kSilence), placement_->processState(rank), worker.where)};
    }
    if (worker.loaded && !worker.finished && now - worker.last_progress >= spec_.progress_timeout) {
      return Failure{ErrorCode::kHang,
                     fmt::format("{} answers, but its computation has made no progress for {} s; it is at: "
                                 "{}. If one operator may take so long, raise --progress-timeout",
                                 nameOf(rank), wholeSeconds(spec_.progress_timeout), worker.where)};
    }
  }
  return std::nullopt;
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

}  // namespace

JobResult runJob(const JobSpec& spec, const JobProgressCallback& progress) {
  if (spec.trace != nullptr && spec.trace_steps < 1)
    fail(ErrorCode::kUsage, "a trace of {} steps; at least 1 is needed", spec.trace_steps);
  if (spec.steps < 1) fail(ErrorCode::kUsage, "{} steps were asked for; at least 1 is needed", spec.steps);
  checkWeightFiles(spec.plan_directory);
  return Coordinator(spec, progress).run();
}

}  // namespace pipeshard
