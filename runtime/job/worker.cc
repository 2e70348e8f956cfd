#include "runtime/job/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "ir/base/ids_format.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/data/prefetched_data.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/disks/dump_folder.h"
#include "runtime/evaluation/rank_evaluation.h"
#include "runtime/execute/step_runner.h"
#include "runtime/identity/build_identity.h"
#include "runtime/identity/plan_programs.h"
#include "runtime/job/worker_arguments.h"
#include "runtime/job/worker_commands.h"
#include "runtime/job/worker_communicators.h"
#include "runtime/job/worker_link.h"
#include "runtime/machine/crash_log.h"
#include "runtime/machine/handover.h"
#include "runtime/machine/limits.h"
#include "runtime/messages/control_types.h"
#include "runtime/profiling/operator_times.h"
#include "runtime/rendezvous/device_rendezvous.h"
#include "runtime/trace/trace_memory.h"
#include "runtime/trace/trace_recorder.h"
#include "transport/collectives/joined_communicator.h"
#include "transport/control/control_message.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

// After an error was sent the worker waits to be stopped, so that its message is read before its end is
// noticed.
constexpr std::chrono::seconds kStopAfterError{10};

nlohmann::json memoryJson(const MemoryParts& parts) {
  return {{"parameters", parts.parameters},   {"states", parts.states},       {"gradients", parts.gradients},
          {"activations", parts.activations}, {"workspace", parts.workspace}, {"padding", parts.padding}};
}

// nullptr: the CPU. `module`: the build of what it needs beside this program, as JSON.
std::unique_ptr<Device> openDevice(const WorkerOptions& options, int ranks, nlohmann::json& module) {
  if (options.device.backend == DeviceBackend::kCpu) return nullptr;
  const std::vector<RankId> here = ranksOnNode(nodesOfRanks(options, ranks), options.rank);
  const int place = static_cast<int>(std::find(here.begin(), here.end(), options.rank) - here.begin());
  CudaModule loaded;
  std::unique_ptr<Device> device = openCudaDevice(place, options.device.shared, &loaded);
  const BuildIdentity build{loaded.version, loaded.commit, buildIdOf(loaded.place)};
  requireModuleOfThisBuild(loaded.path, build);
  module = buildJson(build);
  return device;
}

// The folders that a rank's programs are read from.
struct OpenFolders {
  ProgramFolder training;
  std::optional<ProgramFolder> evaluation;

  explicit OpenFolders(const WorkerOptions& options) : training(options.directory) {
    if (options.evaluation.asked()) evaluation.emplace(options.directory + "/" + kEvaluationFolder);
  }
};

// What a rank computes on, and what does its kernels' work where that depends on the machine; "": the CPU.
std::string describe(const Device* device) {
  if (device == nullptr) return "";
  const std::string libraries = device->libraries();
  return libraries.empty() ? device->name() : fmt::format("{}, {}", device->name(), libraries);
}

// Straight, or not at all: through the host's memory. The programs communicate by it then.
DeviceConnection connectDevice(const WorkerOptions& options, Device& device, OpenFolders& folders,
                               StepRunner& runner, RankEvaluation* evaluation, Communicator* host,
                               WorkerLink& link) {
  DeviceRendezvous rendezvous;
  rendezvous.host = host;
  rendezvous.rank = options.rank;
  rendezvous.ranks = runner.main().program().world_size;
  rendezvous.asked = options.device.transport;
  rendezvous.timeout = std::chrono::milliseconds(options.transfer_timeout_ms);
  rendezvous.folders = {&folders.training};
  if (evaluation != nullptr) rendezvous.folders.push_back(&*folders.evaluation);
  rendezvous.store = [&](const std::string& key, const std::string& bytes) { link.store(key, bytes); };
  rendezvous.fetch = [&](const std::string& key) { return link.fetch(key, kConnectTimeout); };
  DeviceConnection connection = connectDevices(rendezvous, device);
  if (connection.communicator == nullptr) return connection;
  runner.communicateBy(*connection.communicator, std::move(connection.orders.at(0).steps),
                       rendezvous.timeout);
  if (evaluation != nullptr)
    evaluation->communicateBy(*connection.communicator, std::move(connection.orders.at(1).steps),
                              rendezvous.timeout);
  return connection;
}

struct Recording {
  shm::Mapping memory;
  std::optional<TraceRecorder> recorder;

  void start(const WorkerOptions& options, StepRunner& runner, RankEvaluation* evaluation) {
    std::vector<TracedProgram> programs = runner.tracedPrograms();
    const size_t training = programs.size();
    if (evaluation != nullptr) {
      for (TracedProgram& program : evaluation->tracedPrograms()) programs.push_back(std::move(program));
    }
    recorder.emplace(options.rank, std::move(programs), std::max<int64_t>(1, options.trace_steps));
    memory = openTraceMemory(options.trace_descriptor, recorder->bytes());
    recorder->place(memory.span());
    if (!options.resume.empty()) recorder->goOnAfter(readManifest(options.resume).step);
    runner.record(*recorder);
    if (evaluation != nullptr) evaluation->record(*recorder, training);
  }
};

// What is asked of an executor besides: to measure its nodes, to be late at random.
struct Besides {
  std::optional<NodeTimes> times;
  std::optional<RandomDelays> delays;
};

ExecutorOptions executorOptions(const WorkerOptions& options, Besides& besides) {
  ExecutorOptions executor_options;
  executor_options.check_finite = options.check_finite;
  executor_options.find_nan = options.find_nan;
  executor_options.seed = options.data.seed;
  if (options.operators) executor_options.observer = &besides.times.emplace();
  if (const char* text = std::getenv(kRandomDelaysVariable); text != nullptr) {
    const RandomDelaysText asked = parseRandomDelays(text);
    executor_options.delays = &besides.delays.emplace(asked.seed, options.rank, asked.longest);
  }
  return executor_options;
}

// A device that fails is this rank's own trouble, whatever is under way.
struct LostGuard {
  const Device* device;
  bool& is_cause;
  ~LostGuard() { is_cause |= device != nullptr && device->isLost(); }
};

void requireRank(const Program& program, const WorkerOptions& options) {
  if (program.rank == options.rank) return;
  fail(ErrorCode::kConfiguration, "{} holds the program of rank {}, not of rank {}", options.directory,
       program.rank, options.rank);
}

std::unique_ptr<DataSource> openDataOf(const WorkerOptions& options, StepRunner& runner) {
  DataDescription description = options.data;
  description.end.last_batch = runner.lastBatch();
  auto data = makeDataSource(description, runner.main().program(), runner.shorterInputs());
  return description.path.empty() ? std::move(data) : prefetch(std::move(data));
}

// Where the rank stands, for the link's thread, which goes on after an error: it must not ask an executor
// that is gone.
class ToldStatus {
 public:
  ToldStatus(WorkerLink& link, StepRunner& runner, RankEvaluation* evaluation) : link_(link) {
    link_.setStatus([&runner, evaluation] {
      ExecutorProgress progress = runner.progress();
      const ExecutorProgress other = evaluation == nullptr ? ExecutorProgress{} : evaluation->progress();
      const std::string where = other.running ? evaluation->describeCurrent() : runner.describeCurrent();
      if (other.running) progress = {progress.count, other.waiting, true};
      return WorkerStatus{where, progress.count + other.count, progress.running && !progress.waiting,
                          progress.running && progress.waiting};
    });
  }
  ~ToldStatus() { link_.setStatus({}); }

 private:
  WorkerLink& link_;
};

// How a rank reaches the others. Asked to leave, it waits for nobody any more.
class Connections {
 public:
  explicit Connections(WorkerLink& link) : link_(link) {}
  ~Connections() { link_.setInterrupt({}); }

  void openHost(Communicators opened, std::optional<RandomDelays>& delays) {
    host = std::move(opened);
    if (!delays) return;
    on_time_ = std::exchange(host, {});
    host.arena = on_time_.arena;
    host.first = delayCommunicator(*on_time_.first, *delays);
    if (on_time_.second) host.second = delayCommunicator(*on_time_.second, *delays);
  }
  void endWhenAsked() {
    link_.setInterrupt([this] {
      if (device.communicator) device.communicator->interrupt();
      host.first->interrupt();
      if (host.second) host.second->interrupt();
    });
  }

 private:
  WorkerLink& link_;
  Communicators on_time_;  // that late ones call

 public:
  Communicators host;       // through the host's memory
  DeviceConnection device;  // straight between devices, where there is such a way
};

// In the order in which programs first meet.
std::vector<std::vector<RankId>> backgroundGroups(StepRunner& runner, RankEvaluation* evaluation) {
  std::vector<std::vector<RankId>> groups = runner.backgroundGroups();
  if (evaluation != nullptr) {
    for (std::vector<RankId>& group : evaluation->backgroundGroups()) groups.push_back(std::move(group));
  }
  return groups;
}

// Of a step that fails between devices: whether that began at this one.
struct BeganHere {
  const DeviceConnection& straight;
  bool& is_cause;
  ~BeganHere() { is_cause |= straight.communicator != nullptr && straight.communicator->hasFailedHere(); }
};

// Beside what is known before: what the rank has loaded, on which device, and how that reaches others.
void describeLoaded(nlohmann::json& loaded, StepRunner& runner, const Device* device, nlohmann::json module,
                    const DeviceConnection& connection) {
  loaded["constant_bytes"] = runner.constantBytes();
  loaded["device"] = describe(device);
  loaded["memory"] = memoryJson(runner.main().memory().parts);
  if (!module.is_null()) loaded["module"] = std::move(module);
  if (device != nullptr) loaded["library"] = device->comparedLibrary();
  if (!connection.text.empty()) loaded["transport"] = connection.text;
}

// `is_cause`: an error that comes out of here did not begin at another rank, whatever its code. The order of
// what is made is the reverse of how it must go.
void work(const WorkerOptions& options, WorkerLink& link, bool& is_cause) {
  Besides besides;
  ExecutorOptions executor_options = executorOptions(options, besides);
  requireSameDumps(options.dump_directory, options.dump_probe);
  requireAddressSpace(0);
  SharedSegments segments = SharedSegments::inherit(options.segments);
  nlohmann::json loaded = {{"communicator_bytes", segments.communicatorBytes()}};

  std::optional<OpenFolders> folders(options);
  nlohmann::json module;
  const std::unique_ptr<Device> device =
      openDevice(options, static_cast<int>(folders->training.ranks()), module);
  executor_options.device = device.get();
  const LostGuard lost_guard{device.get(), is_cause};
  MemoryBlock device_arena;  // given back behind what uses it

  StepRunner runner(folders->training, options.rank, executor_options);
  loaded["programs"] = programsDigest(folders->training, options.rank);
  const Program& program = runner.main().program();
  requireRank(program, options);
  const std::unique_ptr<DataSource> data = openDataOf(options, runner);
  std::optional<RankEvaluation> of_rank;
  if (options.evaluation.asked())
    of_rank.emplace(options.evaluation, *folders->evaluation, runner, executor_options);
  RankEvaluation* const evaluation = of_rank ? &*of_rank : nullptr;
  const ToldStatus status(link, runner, evaluation);

  const size_t arena_bytes = evaluation == nullptr ? runner.arenaBytes() : evaluation->arenaBytes();
  requireAddressSpace(arena_bytes);
  const size_t shared_bytes = runner.main().device().isHostMemory() ? arena_bytes : 0;
  Connections to_others(link);
  to_others.openHost(openCommunicators(options, program.world_size, shared_bytes,
                                       backgroundGroups(runner, evaluation), link, std::move(segments)),
                     besides.delays);
  if (device != nullptr) {
    device_arena = device->allocate(arena_bytes);
    to_others.host.arena = device_arena.bytes;
    to_others.device =
        connectDevice(options, *device, *folders, runner, evaluation, to_others.host.first.get(), link);
  }
  folders.reset();  // what was read is loaded
  to_others.endWhenAsked();

  const Communicators& by = to_others.host;
  runner.attach(by.arena, by.first.get(), data.get(), by.second.get());
  if (evaluation != nullptr) evaluation->attach(by.arena, by.first.get(), by.second.get());
  if (!options.resume.empty())
    adoptState(runner.main(), openStateOf(program, readCheckpoint(options.resume)));
  Recording recording;
  if (options.trace_descriptor >= 0) recording.start(options, runner, evaluation);

  loaded["arena_bytes"] = arena_bytes;
  describeLoaded(loaded, runner, device.get(), std::move(module), to_others.device);
  link.send(control::kLoaded, std::move(loaded));
  const BeganHere began_here{to_others.device, is_cause};
  followCommands(options, link, runner, evaluation, besides.times ? &*besides.times : nullptr);
}

int reportError(const WorkerOptions& options, WorkerLink& link, const Error& error, bool is_cause) {
  if (!options.log_directory.empty())
    fmt::print(stderr, "{}: {}\n", errorCodeName(error.code()), error.message());
  std::string message = error.message();
  if (error.code() == ErrorCode::kMissingInput && !options.node_of_rank.empty())
    message += "; plan, model and data must have the same path on all hosts (a shared folder, or copies)";
  nlohmann::json body = {{"code", static_cast<int>(error.code())}, {"message", std::move(message)}};
  if (is_cause) body["is_cause"] = true;
  link.send(control::kError, std::move(body));
  try {
    const auto deadline = std::chrono::steady_clock::now() + kStopAfterError;
    while (!link.stopRequested() && std::chrono::steady_clock::now() < deadline)
      link.nextWithin(std::chrono::milliseconds(100));
  } catch (const Error&) {
    // The coordinator is gone, and with it whoever could read the message.
  }
  return static_cast<int>(error.code());
}

// Errors that say what another rank has, not this one: its process is as good as before.
bool isOfAnother(int code) {
  return code == static_cast<int>(ErrorCode::kPeerUnavailable) || code == static_cast<int>(ErrorCode::kHang);
}

// One attempt to run the job: the exit code; nothing when it was asked to leave it.
std::optional<int> workAndReport(const WorkerOptions& options) {
  WorkerLink link(options);
  bool is_cause = false;
  const auto report = [&](const Error& error) -> std::optional<int> {
    if (link.hasLeft()) return std::nullopt;
    const int code = reportError(options, link, error, is_cause);
    return link.hasLeft() && isOfAnother(code) && !is_cause ? std::nullopt : std::optional(code);
  };
  try {
    work(options, link, is_cause);
    return link.hasLeft() ? std::nullopt : std::optional(0);
  } catch (const Error& error) {
    return report(error);
  } catch (const std::bad_alloc&) {
    return report(Error(ErrorCode::kOutOfMemory,
                        fmt::format("rank {}: out of memory{}", options.rank, describeMemoryLimits())));
  } catch (const std::system_error& error) {
    return report(errorOfSystem(error));
  } catch (const std::exception& error) {
    return report(Error(ErrorCode::kInternal, fmt::format("rank {}: {}", options.rank, error.what())));
  }
}

// The next attempt, when this one was left and nothing is held of it. Nothing: there is none.
std::optional<WorkerOptions> nextAttempt(const WorkerOptions& left) {
  for (const int descriptor : {left.data.unpacked_descriptor, left.trace_descriptor}) {
    if (descriptor >= 0) ::close(descriptor);
  }
  Descriptor socket(left.attempts_descriptor);
  if (!handOver(socket, kLeft)) return std::nullopt;
  std::optional<Handover> message = takeHandover(socket.get());
  if (!message) return std::nullopt;
  WorkerOptions options = parseAttempt(std::move(*message));
  options.attempts_descriptor = socket.release();
  return options;
}

int workAttempts(WorkerOptions options) {
  while (true) {
    if (const std::optional<int> code = workAndReport(options)) return *code;
    std::optional<WorkerOptions> next = nextAttempt(options);
    if (!next) return static_cast<int>(ErrorCode::kPeerUnavailable);
    options = std::move(*next);
  }
}

}  // namespace

int workerMain(const WorkerOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  writeBacktraceOnCrash(fmt::format("pipeshard worker of rank {} (pid {})", options.rank, ::getpid()));
  if (::getppid() != options.parent) return static_cast<int>(ErrorCode::kPeerUnavailable);
  try {
    if (options.endpoint.empty() || options.job.empty() || options.segments.empty() ||
        options.directory.empty()) {
      fail(ErrorCode::kUsage,
           "--connect, --job, --segments and --directory are needed; workers are started by a coordinator or "
           "a node");
    }
    if (options.attempts_descriptor >= 0) ::fcntl(options.attempts_descriptor, F_SETFD, FD_CLOEXEC);
    return workAttempts(options);
  } catch (const Error& error) {
    fmt::print(stderr, "pipeshard worker {}: {}: {}\n", options.rank, errorCodeName(error.code()),
               error.message());
    return static_cast<int>(error.code());
  }
}

int workerMain(const std::vector<std::string>& arguments) {
  try {
    WorkerOptions options = parseWorkerArguments(arguments);
    takeKeys(options);
    return workerMain(options);
  } catch (const Error& error) {
    fmt::print(stderr, "pipeshard: {}\n", error.message());
    return static_cast<int>(error.code());
  }
}

}  // namespace pipeshard
