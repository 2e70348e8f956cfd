#include "runtime/job/worker.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <new>

#include "ir/base/ids_format.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/checkpoint/replica_hashes.h"
#include "runtime/data/prefetched_data.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/evaluation/rank_evaluation.h"
#include "runtime/execute/step_runner.h"
#include "runtime/files/content_hash.h"
#include "runtime/identity/build_identity.h"
#include "runtime/identity/plan_programs.h"
#include "runtime/job/worker_arguments.h"
#include "runtime/job/worker_communicators.h"
#include "runtime/job/worker_link.h"
#include "runtime/machine/crash_log.h"
#include "runtime/machine/handover.h"
#include "runtime/machine/limits.h"
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
// For a checkpoint to be written before the next one: other ranks wait in their steps meanwhile; at the end
// nobody does, and the coordinator has a deadline.
constexpr std::chrono::milliseconds kPatienceBetweenSteps = std::chrono::seconds(5);
constexpr std::chrono::milliseconds kPatienceAtTheEnd = std::chrono::hours(24);

std::optional<ClientKeys> takeKeys() {
  const char* text = std::getenv(kClientKeysVariable);
  if (text == nullptr) return std::nullopt;
  const ClientKeys keys = parseClientKeys(text);
  ::unsetenv(kClientKeysVariable);
  return keys;
}

int64_t peakResidentBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

// What the process holds in memory now, looked at twice a second; nothing in between.
class ResidentMemory {
 public:
  std::optional<int64_t> look() {
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ < std::chrono::milliseconds(500)) return std::nullopt;
    looked_ = now;
    std::ifstream pages("/proc/self/statm");
    int64_t all = 0, resident = 0;
    if (!(pages >> all >> resident)) return std::nullopt;
    return resident * ::sysconf(_SC_PAGESIZE);
  }

 private:
  std::chrono::steady_clock::time_point looked_;
};

nlohmann::json memoryJson(const MemoryParts& parts) {
  return {{"parameters", parts.parameters},   {"states", parts.states},       {"gradients", parts.gradients},
          {"activations", parts.activations}, {"workspace", parts.workspace}, {"padding", parts.padding}};
}

// The steps that one "run" asks for. False: the job ends with one of them, which was not applied; nothing is
// saved behind it.
bool runSteps(const WorkerOptions& options, WorkerLink& link, StepRunner& runner, NodeTimes* times,
              int64_t first, int64_t last) {
  static ResidentMemory memory;
  std::optional<WindowGradients> window;
  if (options.dump.gradients && runner.main().program().updates_per_step > 1)
    window.emplace(runner.executorOf(first));
  for (int64_t step = first; step <= last && !link.stopRequested(); ++step) {
    Executor& executor = runner.executorOf(step);
    if (!options.adopt_directory.empty() && step > 1)
      adoptStepDump(executor, StepDump::open(options.adopt_directory, step - 1, options.adopt_ranks));
    const StepReport report = executor.runStep(step);
    if (times != nullptr && &executor == &runner.main()) times->endStep(report.seconds);
    nlohmann::json body = {{"step", step},
                           {"seconds", report.seconds},
                           {"compute_seconds", report.compute_seconds},
                           {"transfer_seconds", report.transfer_seconds}};
    if (report.loss) body["loss"] = *report.loss;  // null when it is not finite
    if (report.losses.size() > 1) body["losses"] = report.losses;
    if (!report.applied) body["not_finite"] = report.not_finite;
    if (const size_t length = runner.sizeOf(step).length; length > 0) body["length"] = length;
    for (const auto& [name, value] : report.measures)
      body["measures"].push_back({{"name", name}, {"value", value}});
    if (const std::optional<int64_t> bytes = memory.look()) body["resident_bytes"] = *bytes;
    if (!options.dump_directory.empty()) {
      body["dump"] =
          writeStepDump(executor, options.dump_directory, step, options.dump, window ? &*window : nullptr);
    }
    link.send("step", std::move(body));
    if (report.applied || !(options.check_finite || report.scale_spent)) continue;
    while (link.next().type != "stop") {
    }
    return false;
  }
  return true;
}

void sendHashes(WorkerLink& link, Executor& executor, int64_t step) {
  const std::vector<std::string> hashes = replicaHashes(executor, step);
  for (size_t begin = 0, end = 0; begin == 0 || begin < hashes.size(); begin = end) {
    end = std::min(begin + kHashesAtOnce, hashes.size());
    const std::vector<std::string> parts(hashes.begin() + begin, hashes.begin() + end);
    link.send("hashes", {{"step", step}, {"parts", parts}, {"last", end == hashes.size()}});
    if (end == begin) return;  // it keeps nothing
  }
}

void sendSaved(WorkerLink& link, const SavedPart& part) {
  nlohmann::json body = {{"step", part.step},
                         {"file", part.file.name},
                         {"bytes", part.file.bytes},
                         {"hash", hashText(part.file.hash)}};
  if (!part.error.empty()) body["error"] = part.error;
  if (part.has_nan) body["has_nan"] = true;
  link.send("saved", std::move(body));
}

void evaluate(WorkerLink& link, RankEvaluation& evaluation, int64_t first, int64_t last) {
  const auto losses = evaluation.run(first, last, [&] { return !link.stopRequested(); });
  nlohmann::json body = {{"last", last}};
  if (losses) body.update({{"losses", losses->sum}, {"weight", losses->weight}});
  link.send("evaluated", std::move(body));
}

// In messages that are as long as some may be.
void sendOperators(WorkerLink& link, const Program& program, const NodeTimes& times) {
  constexpr size_t kAtOnce = 4096;
  const std::vector<NodeTime> rows = times.rows(program);
  const KernelRates rates = measureKernelRates();
  for (size_t begin = 0; begin < rows.size(); begin += kAtOnce) {
    nlohmann::json nodes = nlohmann::json::array();
    for (size_t i = begin; i < std::min(begin + kAtOnce, rows.size()); ++i) {
      nodes.push_back({{"subgraph", rows[i].subgraph.index()},
                       {"node", rows[i].node},
                       {"runs", rows[i].runs},
                       {"seconds", rows[i].seconds}});
    }
    link.send("operators", {{"steps", times.steps()},
                            {"seconds", times.stepSeconds()},
                            {"flops", rates.flops},
                            {"bytes", rates.bytes},
                            {"nodes", std::move(nodes)}});
  }
}

// What the coordinator asks for, one after the other, until it says "stop". `evaluation`, `times`: nullptr:
// none.
void followCommands(const WorkerOptions& options, WorkerLink& link, StepRunner& runner,
                    RankEvaluation* evaluation, NodeTimes* times) {
  CheckpointWriter writer([&](const SavedPart& part) { sendSaved(link, part); });
  while (true) {
    const ControlMessage command = link.next();
    if (command.type == "stop") return;
    if (command.type == kFault)
      fail(ErrorCode::kInternal, "worker: {}", command.body.at("message").get<std::string>());
    if (command.type == "run") {
      if (!runSteps(options, link, runner, times, command.body.at("first").get<int64_t>(),
                    command.body.at("last").get<int64_t>()))
        return;
    } else if (command.type == "evaluate" && evaluation != nullptr) {
      evaluate(link, *evaluation, command.body.at("first").get<int64_t>(),
               command.body.at("last").get<int64_t>());
    } else if (command.type == "check") {
      sendHashes(link, runner.main(), command.body.at("step").get<int64_t>());
    } else if (command.type == "save") {
      writer.save(runner.main(), savedBuffersFromJson(command.body.at("buffers")),
                  command.body.at("step").get<int64_t>(), command.body.at("folder").get<std::string>(),
                  command.body.at("last").get<bool>() ? kPatienceAtTheEnd : kPatienceBetweenSteps);
    } else if (command.type == "finish") {
      writer.finish();
      const int64_t peak = peakResidentBytes();
      if (times != nullptr) sendOperators(link, runner.main().program(), *times);
      link.send("finished", {{"peak_resident_bytes", peak},
                             {"peak_device_bytes", runner.main().device().peakBytes()}});
    } else {
      fail(ErrorCode::kInternal, "worker: unknown command '{}'", command.type);
    }
  }
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
                               StepRunner& runner, RankEvaluation* evaluation, WorkerLink& link) {
  DeviceRendezvous rendezvous;
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
    runner.record(*recorder);
    if (evaluation != nullptr) evaluation->record(*recorder, training);
  }
};

// `is_cause`: an error that comes out of here did not begin at another rank, whatever its code.
void work(const WorkerOptions& options, WorkerLink& link, bool& is_cause) {
  ExecutorOptions executor_options;
  executor_options.check_finite = options.check_finite;
  executor_options.find_nan = options.find_nan;
  executor_options.seed = options.data.seed;
  std::optional<NodeTimes> times;
  if (options.operators) executor_options.observer = &times.emplace();
  std::optional<RandomDelays> delays;
  if (const char* text = std::getenv(kRandomDelaysVariable); text != nullptr) {
    const RandomDelaysText asked = parseRandomDelays(text);
    executor_options.delays = &delays.emplace(asked.seed, options.rank, asked.longest);
  }
  requireAddressSpace(0);
  SharedSegments segments = SharedSegments::inherit(options.segments);
  const int64_t communicator_bytes = segments.communicatorBytes();
  std::optional<OpenFolders> folders(options);
  nlohmann::json module;
  const std::unique_ptr<Device> device =
      openDevice(options, static_cast<int>(folders->training.ranks()), module);
  executor_options.device = device.get();
  // A device that fails is this rank's own trouble, whatever is under way.
  struct LostGuard {
    const Device* device;
    bool& is_cause;
    ~LostGuard() { is_cause |= device != nullptr && device->isLost(); }
  } lost_guard{device.get(), is_cause};
  MemoryBlock device_arena;  // given back behind what uses it
  StepRunner runner(folders->training, options.rank, executor_options);
  const std::string digest = programsDigest(folders->training, options.rank);
  const Program& program = runner.main().program();
  if (program.rank != options.rank) {
    fail(ErrorCode::kConfiguration, "{} holds the program of rank {}, not of rank {}", options.directory,
         program.rank, options.rank);
  }
  DataDescription description = options.data;
  description.end.last_batch = runner.lastBatch();
  auto data = makeDataSource(description, program, runner.shorterInputs());
  if (!description.path.empty()) data = prefetch(std::move(data));
  std::optional<RankEvaluation> of_rank;
  if (options.evaluation.asked())
    of_rank.emplace(options.evaluation, *folders->evaluation, runner, executor_options);
  RankEvaluation* const evaluation = of_rank ? &*of_rank : nullptr;
  // The link's thread goes on after a throw below; it must not ask an executor that is gone.
  struct StatusGuard {
    WorkerLink& link;
    ~StatusGuard() { link.setStatus({}); }
  } guard{link};
  link.setStatus([&runner, evaluation] {
    ExecutorProgress progress = runner.progress();
    const ExecutorProgress other = evaluation == nullptr ? ExecutorProgress{} : evaluation->progress();
    const std::string where = other.running ? evaluation->describeCurrent() : runner.describeCurrent();
    if (other.running) progress = {progress.count, other.waiting, true};
    return WorkerStatus{where, progress.count + other.count, progress.running && !progress.waiting,
                        progress.running && progress.waiting};
  });
  std::vector<std::vector<RankId>> groups = runner.backgroundGroups();
  if (evaluation != nullptr) {
    for (std::vector<RankId>& group : evaluation->backgroundGroups()) groups.push_back(std::move(group));
  }
  const size_t arena_bytes = evaluation == nullptr ? runner.arenaBytes() : evaluation->arenaBytes();
  requireAddressSpace(arena_bytes);
  const size_t shared_bytes = runner.main().device().isHostMemory() ? arena_bytes : 0;
  Communicators communicators =
      openCommunicators(options, program.world_size, shared_bytes, groups, link, std::move(segments));
  Communicators inner;
  if (delays) {
    inner = std::exchange(communicators, {});
    communicators.arena = inner.arena;
    communicators.first = delayCommunicator(*inner.first, *delays);
    if (inner.second) communicators.second = delayCommunicator(*inner.second, *delays);
  }
  if (device != nullptr) {
    device_arena = device->allocate(arena_bytes);
    communicators.arena = device_arena.bytes;
  }
  DeviceConnection between_devices;
  if (device != nullptr)
    between_devices = connectDevice(options, *device, *folders, runner, evaluation, link);
  folders.reset();  // what was read is loaded
  // Asked to leave, it waits for nobody any more.
  struct InterruptGuard {
    WorkerLink& link;
    ~InterruptGuard() { link.setInterrupt({}); }
  } interrupt_guard{link};
  link.setInterrupt([&communicators, &between_devices] {
    if (between_devices.communicator) between_devices.communicator->interrupt();
    communicators.first->interrupt();
    if (communicators.second) communicators.second->interrupt();
  });
  runner.attach(communicators.arena, communicators.first.get(), data.get(), communicators.second.get());
  if (evaluation != nullptr)
    evaluation->attach(communicators.arena, communicators.first.get(), communicators.second.get());
  if (!options.resume.empty())
    adoptState(runner.main(), openStateOf(program, readCheckpoint(options.resume)));
  Recording recording;
  if (options.trace_descriptor >= 0) recording.start(options, runner, evaluation);
  nlohmann::json loaded = {{"programs", digest},
                           {"arena_bytes", arena_bytes},
                           {"constant_bytes", runner.constantBytes()},
                           {"communicator_bytes", communicator_bytes},
                           {"device", describe(device.get())},
                           {"memory", memoryJson(runner.main().memory().parts)}};
  if (!module.is_null()) loaded["module"] = std::move(module);
  if (device != nullptr) loaded["library"] = device->comparedLibrary();
  if (!between_devices.text.empty()) loaded["transport"] = between_devices.text;
  link.send("loaded", std::move(loaded));
  try {
    followCommands(options, link, runner, evaluation, times ? &*times : nullptr);
  } catch (...) {
    is_cause = between_devices.communicator != nullptr && between_devices.communicator->hasFailedHere();
    throw;
  }
}

int reportError(const WorkerOptions& options, WorkerLink& link, const Error& error, bool is_cause) {
  if (!options.log_directory.empty())
    fmt::print(stderr, "{}: {}\n", errorCodeName(error.code()), error.message());
  nlohmann::json body = {{"code", static_cast<int>(error.code())}, {"message", error.message()}};
  if (is_cause) body["is_cause"] = true;
  link.send("error", std::move(body));
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
    return report(Error(ErrorCode::kOutOfMemory, fmt::format("rank {}: out of memory", options.rank)));
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
    options.keys = takeKeys();
    return workerMain(options);
  } catch (const Error& error) {
    fmt::print(stderr, "pipeshard: {}\n", error.message());
    return static_cast<int>(error.code());
  }
}

}  // namespace pipeshard
