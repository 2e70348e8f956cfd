#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <random>
#include <thread>

#include "runtime/child_process.h"
#include "runtime/control_types.h"
#include "runtime/job.h"
#include "runtime/weight_check.h"
#include "runtime/worker.h"
#include "transport/control.h"
#include "transport/shared_memory.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookAround{100};
// A worker's link answers every second, whatever the worker computes; silence means stopped or swapped out.
constexpr milliseconds kSilence{15'000};
// A worker that lost its peer speaks before the peer's own end is noticed: the cause gets this long to show up.
constexpr milliseconds kCauseWindow{500};

constexpr int kMessagesAtOnce = 256;

struct Worker {
  ChildProcess process;
  Clock::time_point last_heard;
  std::string where = "starting";
  bool loaded = false;
  bool finished = false;
  int64_t steps_done = 0;
};

struct Failure {
  ErrorCode code;
  std::string message;
  bool is_cause = true;  // false: a worker cannot reach a peer, most often the consequence of something else
};

// The earlier one, unless only the later one can be a cause.
void keepFirstCause(std::optional<Failure>& first, std::optional<Failure> later) {
  if (later && (!first || (!first->is_cause && later->is_cause))) first = std::move(later);
}

ErrorCode knownCode(int code) {
  const auto first = static_cast<int>(ErrorCode::kUsage);
  const auto last = static_cast<int>(ErrorCode::kNoGoodCheckpoint);
  return code >= first && code <= last ? static_cast<ErrorCode>(code) : ErrorCode::kInternal;
}

std::string newJobId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

int threadsPerWorker(const JobSpec& spec, int ranks) {
  if (spec.threads_per_worker > 0) return spec.threads_per_worker;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

class Coordinator {
 public:
  Coordinator(const JobSpec& spec, const JobProgressCallback& progress)
      : spec_(spec),
        progress_(progress),
        ranks_(countRanks(spec.plan_directory)),
        job_id_(newJobId()),
        segments_(SharedSegments::create(ranks_)),
        server_(ControlServer::bind({.job_id = job_id_, .keys = keys_, .schema = workerMessages()})) {
    signals_ = spec.signals;
    if (signals_ == nullptr && spec.handle_signals) signals_ = &own_signals_.emplace();
    result_.ranks.resize(static_cast<size_t>(ranks_));
    result_.steps.resize(static_cast<size_t>(spec.steps));
    losses_.resize(result_.steps.size());
    dumps_.assign(result_.steps.size() * static_cast<size_t>(ranks_), "");
  }

  JobResult run() {
    const Clock::time_point start = Clock::now();
    startWorkers();
    waitFor([](const Worker& worker) { return worker.loaded; }, start + spec_.load_timeout, "loading the program");
    result_.load_seconds = std::chrono::duration<double>(Clock::now() - start).count();
    sendToAll("run", {{"first", 1}, {"last", spec_.steps}});
    for (int64_t step = 1; step <= spec_.steps; ++step) {
      waitFor([&](const Worker& worker) { return worker.steps_done >= step; }, Clock::now() + spec_.step_timeout,
              fmt::format("step {}", step));
      finishStep(step);
    }
    waitFor([](const Worker& worker) { return worker.finished; }, Clock::now() + spec_.step_timeout, "the end of the last step");
    stopWorkers();
    for (std::string& path : dumps_) {
      if (!path.empty()) result_.dump_files.push_back(std::move(path));
    }
    return std::move(result_);
  }

 private:
  void startWorkers();
  void finishStep(int64_t step);
  void stopWorkers();
  [[noreturn]] void failJob(Failure first);
  void report(const JobProgress& progress) {
    if (progress_) progress_(progress);
  }
  void sendToAll(std::string_view type, const nlohmann::json& body);

  // One wait: at most kLookAround; then what came is worked off. The first failure, if any.
  std::optional<Failure> lookAround();
  void forgiveAbsence();
  std::optional<Failure> handleMessage(const ControlMessage& message);
  std::optional<Failure> handleStep(int rank, Worker& worker, const nlohmann::json& body);
  std::optional<Failure> handleEnd(int rank);
  std::optional<Failure> findSilentWorker();

  template <typename Condition>
  void waitFor(Condition condition, Clock::time_point deadline, const std::string& what) {
    const auto is_met = [&] { return std::all_of(workers_.begin(), workers_.end(), condition); };
    while (!is_met()) {
      if (std::optional<Failure> failure = lookAround()) failJob(std::move(*failure));
      if (Clock::now() < deadline || is_met()) continue;
      std::string late;
      for (size_t rank = 0; rank < workers_.size(); ++rank) {
        if (!condition(workers_[rank]))
          late += fmt::format("\n  rank {} (pid {}): {}", rank, workers_[rank].process.pid(), workers_[rank].where);
      }
      failJob({ErrorCode::kHang, fmt::format("{} took too long; still there:{}", what, late)});
    }
  }

  const JobSpec& spec_;
  const JobProgressCallback& progress_;
  int ranks_;
  std::string job_id_;
  SharedSegments segments_;
  JobKeys keys_ = makeJobKeys();
  std::unique_ptr<ControlServer> server_;
  std::optional<SignalWatch> own_signals_;
  SignalWatch* signals_ = nullptr;  // nullptr: signals are not handled
  Clock::time_point last_look_ = Clock::now();
  JobResult result_;
  std::vector<std::optional<double>> losses_;  // by step
  std::vector<std::string> dumps_;             // by step, rank
  std::vector<Worker> workers_;                // last: killed and reaped before anything that they use goes away
};

void Coordinator::startWorkers() {
  namespace fs = std::filesystem;
  const int threads = threadsPerWorker(spec_, ranks_);
  if (!spec_.dump_directory.empty()) {
    std::error_code error;
    fs::create_directories(spec_.dump_directory, error);
    if (error) fail(ErrorCode::kDiskFull, "cannot create the folder {}: {}", spec_.dump_directory, error.message());
  }
  WorkerOptions options;
  options.endpoint = server_->endpoint();
  options.job = job_id_;
  options.segments = segments_.describe();
  options.coordinator = ::getpid();
  options.data = spec_.data;
  options.check_finite = spec_.check_finite;
  options.dump_directory = spec_.dump_directory;
  options.dump = spec_.dump;
  options.adopt_directory = spec_.adopt_directory;
  options.adopt_ranks = spec_.adopt_ranks;
  options.transfer_timeout_ms = spec_.transfer_timeout.count();
  workers_.reserve(static_cast<size_t>(ranks_));
  for (int rank = 0; rank < ranks_; ++rank) {
    options.rank = rank;
    options.directory = (fs::path(spec_.plan_directory) / "ranks" / rankDirectoryName(rank)).string();
    std::vector<std::string> arguments = spec_.worker_arguments;
    const std::vector<std::string> own = workerArguments(options);
    arguments.insert(arguments.end(), own.begin(), own.end());
    const std::vector<std::string> environment{fmt::format("OMP_NUM_THREADS={}", threads),
                                               fmt::format("{}={}", kClientKeysVariable, clientKeysText(keys_.clientKeys()))};
    workers_.push_back({ChildProcess::start(spec_.worker_executable, arguments, environment), Clock::now()});
    result_.ranks[static_cast<size_t>(rank)].pid = workers_.back().process.pid();
    report({.kind = JobProgress::Kind::kStarted, .rank = rank, .pid = workers_.back().process.pid()});
  }
}

void Coordinator::sendToAll(std::string_view type, const nlohmann::json& body) {
  for (int rank = 0; rank < ranks_; ++rank) server_->send(rank, type, body);
}

void Coordinator::finishStep(int64_t step) {
  StepResult& result = result_.steps[static_cast<size_t>(step - 1)];
  const std::optional<double> loss = losses_[static_cast<size_t>(step - 1)];
  if (!loss) failJob({ErrorCode::kConfiguration, "no rank's program has a loss"});
  result.step = step;
  result.loss = *loss;
  report({.kind = JobProgress::Kind::kStep, .step = step, .loss = *loss, .seconds = result.seconds});
}

// Nobody was silent while the coordinator itself did not listen (suspended, or in the caller's callback).
void Coordinator::forgiveAbsence() {
  const Clock::time_point now = Clock::now();
  const auto absence = now - last_look_;
  last_look_ = now;
  if (absence < std::chrono::seconds(1)) return;
  for (Worker& worker : workers_) worker.last_heard += absence;
}

std::optional<Failure> Coordinator::lookAround() {
  std::vector<int> descriptors;
  for (const Worker& worker : workers_) {
    if (!worker.process.isReaped()) descriptors.push_back(worker.process.descriptor());
  }
  if (signals_) descriptors.push_back(signals_->descriptor());
  forgiveAbsence();
  ControlEvent event = server_->poll(kLookAround, descriptors);
  if (signals_) {
    if (const int signal = signals_->take(); signal != 0) {
      stopWorkers();
      throw JobInterrupted(signal);
    }
  }
  std::optional<Failure> failure;
  // Messages first: what a worker said before it ended explains its end. Not all of them, or workers with very short steps
  // would keep the coordinator from looking at anything else.
  for (int taken = 1; event.message; ++taken) {
    keepFirstCause(failure, handleMessage(*event.message));
    event.message = taken < kMessagesAtOnce ? server_->receive(milliseconds(0)) : std::nullopt;
  }
  for (int rank = 0; rank < ranks_; ++rank) keepFirstCause(failure, handleEnd(rank));
  keepFirstCause(failure, findSilentWorker());
  return failure;
}

std::optional<Failure> Coordinator::handleMessage(const ControlMessage& message) {
  if (message.rank < 0 || message.rank >= ranks_) return std::nullopt;
  Worker& worker = workers_[static_cast<size_t>(message.rank)];
  RankResult& rank = result_.ranks[static_cast<size_t>(message.rank)];
  const nlohmann::json& body = message.body;
  worker.last_heard = Clock::now();
  try {
    if (message.lost_before > 0) {
      return Failure{ErrorCode::kPeerUnavailable,
                     fmt::format("rank {} (pid {}): {} control messages were lost", message.rank, rank.pid, message.lost_before)};
    }
    if (message.type == kFault) {
      return Failure{ErrorCode::kInternal, fmt::format("rank {} (pid {}) breaks the rules of control: {}", message.rank, rank.pid,
                                                       body.at("message").get<std::string>())};
    }
    if (message.type == "heartbeat") {
      worker.where = body.at("where").get<std::string>();
    } else if (message.type == "loaded") {
      worker.loaded = true;
      worker.where = "loaded";
      rank.arena_bytes = body.at("arena_bytes").get<int64_t>();
      rank.constant_bytes = body.at("constant_bytes").get<int64_t>();
      const nlohmann::json& memory = body.at("memory");
      rank.memory = {memory.at("parameters"),  memory.at("states"),    memory.at("gradients"),
                     memory.at("activations"), memory.at("workspace"), memory.at("padding")};
      report({.kind = JobProgress::Kind::kLoaded, .rank = message.rank});
    } else if (message.type == "step") {
      return handleStep(message.rank, worker, body);
    } else if (message.type == "finished") {
      worker.finished = true;
      rank.peak_resident_bytes = body.at("peak_resident_bytes").get<int64_t>();
    } else if (message.type == "error") {
      const ErrorCode code = knownCode(body.at("code").get<int>());
      return Failure{code, fmt::format("worker of rank {} (pid {}): {}", message.rank, rank.pid, body.at("message").get<std::string>()),
                     code != ErrorCode::kPeerUnavailable && code != ErrorCode::kHang};
    }
  } catch (const nlohmann::json::exception& error) {
    return Failure{ErrorCode::kInternal,
                   fmt::format("rank {} (pid {}): malformed '{}' message: {}", message.rank, rank.pid, message.type, error.what())};
  }
  return std::nullopt;
}

std::optional<Failure> Coordinator::handleStep(int rank, Worker& worker, const nlohmann::json& body) {
  const auto step = body.at("step").get<int64_t>();
  if (step != worker.steps_done + 1 || step > spec_.steps) {
    return Failure{ErrorCode::kInternal, fmt::format("rank {}: reported step {} after step {}", rank, step, worker.steps_done)};
  }
  worker.steps_done = step;
  worker.where = fmt::format("step {} done", step);
  const auto index = static_cast<size_t>(step - 1);
  StepResult& result = result_.steps[index];
  result.compute_seconds.resize(static_cast<size_t>(ranks_));
  result.transfer_seconds.resize(static_cast<size_t>(ranks_));
  result.compute_seconds[static_cast<size_t>(rank)] = body.at("compute_seconds").get<double>();
  result.transfer_seconds[static_cast<size_t>(rank)] = body.at("transfer_seconds").get<double>();
  result.seconds = std::max(result.seconds, body.at("seconds").get<double>());
  if (body.contains("loss")) {
    losses_[index] = body["loss"].is_null() ? std::numeric_limits<double>::quiet_NaN() : body["loss"].get<double>();
  }
  if (body.contains("dump")) dumps_[index * static_cast<size_t>(ranks_) + static_cast<size_t>(rank)] = body["dump"].get<std::string>();
  return std::nullopt;
}

std::optional<Failure> Coordinator::handleEnd(int rank) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  if (worker.process.isReaped() || !worker.process.tryReap()) return std::nullopt;
  segments_.markDead(rank);
  return Failure{ErrorCode::kPeerUnavailable, fmt::format("worker of rank {} (pid {}) {}; last seen: {}", rank, worker.process.pid(),
                                                          worker.process.describeEnd(), worker.where)};
}

std::optional<Failure> Coordinator::findSilentWorker() {
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const Worker& worker = workers_[rank];
    if (Clock::now() - worker.last_heard < kSilence) continue;
    return Failure{ErrorCode::kHang,
                   fmt::format("worker of rank {} (pid {}) has not answered for {} s (stopped?); last seen: {}", rank, worker.process.pid(),
                               std::chrono::duration_cast<std::chrono::seconds>(kSilence).count(), worker.where)};
  }
  return std::nullopt;
}

void Coordinator::failJob(Failure first) {
  std::optional<Failure> failure = std::move(first);
  const Clock::time_point end = Clock::now() + kCauseWindow;
  while (!failure->is_cause && Clock::now() < end) keepFirstCause(failure, lookAround());
  for (int rank = 0; rank < ranks_; ++rank) segments_.markDead(rank);
  for (Worker& worker : workers_) worker.process.kill();
  throw Error(failure->code, failure->message);
}

void Coordinator::stopWorkers() {
  for (int rank = 0; rank < ranks_; ++rank) {
    try {
      if (server_->isRegistered(rank)) server_->send(rank, "stop", nlohmann::json::object());
    } catch (const Error&) {
      // It is gone already, or will be killed below.
    }
  }
  const Clock::time_point end = Clock::now() + spec_.stop_timeout;
  for (Worker& worker : workers_) {
    while (!worker.process.tryReap() && Clock::now() < end) {
      const int descriptor = worker.process.descriptor();
      server_->poll(kLookAround, std::span(&descriptor, 1));
    }
    worker.process.kill();
  }
}

}  // namespace

JobInterrupted::JobInterrupted(int signal)
    : Error(ErrorCode::kRequeue, fmt::format("stopped by {}", signal == SIGINT    ? "SIGINT"
                                                              : signal == SIGTERM ? "SIGTERM"
                                                                                  : "SIGHUP")),
      signal_(signal) {}

int countRanks(const std::string& plan_directory) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(plan_directory) / "ranks";
  std::error_code error;
  int count = 0;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    count += entry->is_directory() ? 1 : 0;
  }
  if (error || count == 0) {
    fail(ErrorCode::kMissingInput,
         "{} is not a plan directory: it has no folder ranks/ with a folder per rank; make one with `pipeshard plan`", plan_directory);
  }
  for (int rank = 0; rank < count; ++rank) {
    if (!fs::is_directory(folder / rankDirectoryName(rank))) {
      fail(ErrorCode::kConfiguration, "{} holds {} ranks, but not {}; plan again", folder.string(), count, rankDirectoryName(rank));
    }
  }
  return count;
}

JobResult runJob(const JobSpec& spec, const JobProgressCallback& progress) {
  if (spec.steps < 1) fail(ErrorCode::kUsage, "{} steps were asked for; at least 1 is needed", spec.steps);
  checkWeightFiles(spec.plan_directory);
  return Coordinator(spec, progress).run();
}

}  // namespace pipeshard
