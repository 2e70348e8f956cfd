#include "runtime/job/worker.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <set>
#include <sstream>

#include "ir/base/ids_format.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/execute/step_runner.h"
#include "runtime/files/content_hash.h"
#include "runtime/job/worker_link.h"
#include "runtime/trace/trace_memory.h"
#include "runtime/trace/trace_recorder.h"
#include "transport/collectives/joined_communicator.h"
#include "transport/control/control_message.h"
#include "transport/gloo/gloo_communicator.h"
#include "transport/shared/shared_memory.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

// After an error was sent the worker waits to be stopped, so that its message is read before its end is
// noticed.
constexpr std::chrono::seconds kStopAfterError{10};
// For all workers to have opened their ports; they load their programs first.
constexpr std::chrono::minutes kConnectTimeout{10};

template <typename T>
T parseNumber(const std::string& option, const std::string& text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    fail(ErrorCode::kUsage, "worker: {} {}: not a number", option, text);
  return number;
}

IdVector<RankId, int> parseNumbers(const std::string& option, const std::string& text) {
  IdVector<RankId, int> numbers;
  std::istringstream list(text);
  for (std::string part; std::getline(list, part, ',');) numbers.push_back(parseNumber<int>(option, part));
  return numbers;
}

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

// Addresses travel over the control connection.
class LinkStore : public RendezvousStore {
 public:
  explicit LinkStore(WorkerLink& link) : link_(link) {}
  void set(const std::string& key, const std::string& bytes) override { link_.store(key, bytes); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return link_.fetch(key, timeout);
  }

 private:
  WorkerLink& link_;
};

nlohmann::json memoryJson(const MemoryParts& parts) {
  return {{"parameters", parts.parameters},   {"states", parts.states},       {"gradients", parts.gradients},
          {"activations", parts.activations}, {"workspace", parts.workspace}, {"padding", parts.padding}};
}

// The steps that one "run" asks for.
void runSteps(const WorkerOptions& options, WorkerLink& link, StepRunner& runner, int64_t first,
              int64_t last) {
  std::optional<WindowGradients> window;
  if (options.dump.gradients && runner.main().program().updates_per_step > 1)
    window.emplace(runner.executorOf(first));
  for (int64_t step = first; step <= last && !link.stopRequested(); ++step) {
    Executor& executor = runner.executorOf(step);
    if (!options.adopt_directory.empty() && step > 1)
      adoptStepDump(executor, StepDump::open(options.adopt_directory, step - 1, options.adopt_ranks));
    const StepReport report = executor.runStep(step);
    nlohmann::json body = {{"step", step},
                           {"seconds", report.seconds},
                           {"compute_seconds", report.compute_seconds},
                           {"transfer_seconds", report.transfer_seconds}};
    if (report.loss) body["loss"] = *report.loss;  // null when it is not finite
    if (report.losses.size() > 1) body["losses"] = report.losses;
    if (!options.dump_directory.empty()) {
      body["dump"] =
          writeStepDump(executor, options.dump_directory, step, options.dump, window ? &*window : nullptr);
    }
    link.send("step", std::move(body));
  }
}

void sendSaved(WorkerLink& link, const SavedPart& part) {
  nlohmann::json body = {{"step", part.step},
                         {"file", part.file.name},
                         {"bytes", part.file.bytes},
                         {"hash", hashText(part.file.hash)}};
  if (!part.error.empty()) body["error"] = part.error;
  link.send("saved", std::move(body));
}

// What the coordinator asks for, one after the other, until it says "stop".
void followCommands(const WorkerOptions& options, WorkerLink& link, StepRunner& runner) {
  CheckpointWriter writer([&](const SavedPart& part) { sendSaved(link, part); });
  while (true) {
    const ControlMessage command = link.next();
    if (command.type == "stop") return;
    if (command.type == kFault)
      fail(ErrorCode::kInternal, "worker: {}", command.body.at("message").get<std::string>());
    if (command.type == "run") {
      runSteps(options, link, runner, command.body.at("first").get<int64_t>(),
               command.body.at("last").get<int64_t>());
    } else if (command.type == "save") {
      writer.save(runner.main(), command.body.at("step").get<int64_t>(),
                  command.body.at("folder").get<std::string>());
    } else if (command.type == "finish") {
      writer.finish();
      link.send("finished", {{"peak_resident_bytes", peakResidentBytes()}});
    } else {
      fail(ErrorCode::kInternal, "worker: unknown command '{}'", command.type);
    }
  }
}

struct Communicators {
  std::unique_ptr<Communicator> first;
  std::unique_ptr<Communicator> second;  // for background collectives; null where there are none
  std::span<std::byte> arena;
};

// Those that are to be connected through Gloo, so that the groups that are not all on one node can meet. Each
// of them finds the same.
std::vector<RankId> ranksAcrossNodes(const std::vector<std::vector<RankId>>& groups,
                                     const IdVector<RankId, int>& node_of_rank) {
  std::set<RankId> ranks;
  for (const std::vector<RankId>& group : groups) {
    const auto node = [&](RankId rank) { return node_of_rank[rank]; };
    if (std::any_of(group.begin(), group.end(),
                    [&](RankId rank) { return node(rank) != node(group.front()); }))
      ranks.insert(group.begin(), group.end());
  }
  return {ranks.begin(), ranks.end()};
}

// Shared memory with the ranks on this node; if there are other nodes, Gloo to theirs.
Communicators openCommunicators(const WorkerOptions& options, const StepRunner& runner, WorkerLink& link,
                                SharedSegments segments) {
  const int ranks = runner.main().program().world_size;
  const std::chrono::milliseconds timeout(options.transfer_timeout_ms);
  IdVector<RankId, int> nodes = options.node_of_rank;
  if (nodes.empty()) nodes.resize(ranks);
  if (std::ssize(nodes) != ranks) {
    fail(ErrorCode::kConfiguration, "the plan has {} ranks, but {} are placed on nodes", ranks, nodes.size());
  }
  const std::vector<RankId> here = ranksOnNode(nodes, options.rank);
  const RankId local_rank(std::find(here.begin(), here.end(), options.rank) - here.begin());
  auto on_node = SharedMemoryCommunicator::open(std::move(segments), local_rank, timeout, here);
  Communicators opened;
  opened.arena = on_node->createArena(runner.arenaBytes());
  const std::vector<std::vector<RankId>> groups = runner.backgroundGroups();
  if (!groups.empty()) opened.second = on_node->openSecond();
  opened.first = std::move(on_node);
  if (std::ssize(here) == ranks) return opened;
  LinkStore store(link);
  GlooOptions gloo;
  gloo.rank = options.rank;
  gloo.size = ranks;
  gloo.host = options.host;
  gloo.timeout = timeout;
  gloo.connect_timeout = kConnectTimeout;
  opened.first = joinCommunicators(nodes, options.rank, std::move(opened.first), openGloo(gloo, store));
  if (groups.empty()) return opened;
  gloo.channel = "background";
  gloo.peers = ranksAcrossNodes(groups, nodes);
  opened.second = joinCommunicators(nodes, options.rank, std::move(opened.second), openGloo(gloo, store));
  return opened;
}

struct Recording {
  shm::Mapping memory;
  std::optional<TraceRecorder> recorder;

  void start(const WorkerOptions& options, StepRunner& runner) {
    recorder.emplace(options.rank, runner.tracedPrograms(), std::max<int64_t>(1, options.trace_steps));
    memory = openTraceMemory(options.trace_descriptor, recorder->bytes());
    recorder->place(memory.span());
    runner.record(*recorder);
  }
};

void work(const WorkerOptions& options, WorkerLink& link) {
  ExecutorOptions executor_options;
  executor_options.check_finite = options.check_finite;
  executor_options.seed = options.data.seed;
  std::optional<RandomDelays> delays;
  if (const char* text = std::getenv(kRandomDelaysVariable); text != nullptr) {
    const RandomDelaysText asked = parseRandomDelays(text);
    executor_options.delays = &delays.emplace(asked.seed, options.rank, asked.longest);
  }
  SharedSegments segments = SharedSegments::inherit(options.segments);
  const int64_t communicator_bytes = segments.communicatorBytes();
  StepRunner runner(options.directory, executor_options);
  const Program& program = runner.main().program();
  if (program.rank != options.rank) {
    fail(ErrorCode::kConfiguration, "{} holds the program of rank {}, not of rank {}", options.directory,
         program.rank, options.rank);
  }
  DataDescription description = options.data;
  description.end.last_batch = runner.lastBatch();
  const auto data = makeDataSource(description, program);
  Communicators communicators = openCommunicators(options, runner, link, std::move(segments));
  Communicators inner;
  if (delays) {
    inner = std::exchange(communicators, {});
    communicators.arena = inner.arena;
    communicators.first = delayCommunicator(*inner.first, *delays);
    if (inner.second) communicators.second = delayCommunicator(*inner.second, *delays);
  }
  runner.attach(communicators.arena, communicators.first.get(), data.get(), communicators.second.get());
  if (!options.resume.empty()) adoptState(runner.main(), openTensors(readCheckpoint(options.resume)));
  Recording recording;
  if (options.trace_descriptor >= 0) recording.start(options, runner);
  // The link's thread goes on after a throw below; it must not ask an executor that is gone.
  struct StatusGuard {
    WorkerLink& link;
    ~StatusGuard() { link.setStatus({}); }
  } guard{link};
  link.setStatus([&runner] {
    const ExecutorProgress progress = runner.progress();
    return WorkerStatus{runner.describeCurrent(), progress.count, progress.running && !progress.waiting};
  });
  link.send("loaded", {{"arena_bytes", runner.arenaBytes()},
                       {"constant_bytes", runner.constantBytes()},
                       {"communicator_bytes", communicator_bytes},
                       {"memory", memoryJson(runner.main().memory().parts)}});
  followCommands(options, link, runner);
}

int reportError(WorkerLink& link, const Error& error) {
  link.send("error", {{"code", static_cast<int>(error.code())}, {"message", error.message()}});
  try {
    const auto deadline = std::chrono::steady_clock::now() + kStopAfterError;
    while (!link.stopRequested() && std::chrono::steady_clock::now() < deadline)
      link.nextWithin(std::chrono::milliseconds(100));
  } catch (const Error&) {
    // The coordinator is gone, and with it whoever could read the message.
  }
  return static_cast<int>(error.code());
}

int workAndReport(const WorkerOptions& options) {
  WorkerLink link(options);
  try {
    work(options, link);
    return 0;
  } catch (const Error& error) {
    return reportError(link, error);
  } catch (const std::bad_alloc&) {
    return reportError(link,
                       Error(ErrorCode::kOutOfMemory, fmt::format("rank {}: out of memory", options.rank)));
  } catch (const std::exception& error) {
    return reportError(link,
                       Error(ErrorCode::kInternal, fmt::format("rank {}: {}", options.rank, error.what())));
  }
}

}  // namespace

std::vector<std::string> workerArguments(const WorkerOptions& options) {
  std::vector<std::string> arguments{"--connect",
                                     options.endpoint,
                                     "--job",
                                     options.job,
                                     "--generation",
                                     std::to_string(options.generation),
                                     "--rank",
                                     std::to_string(options.rank.index()),
                                     "--parent",
                                     std::to_string(options.parent),
                                     "--seed",
                                     std::to_string(options.data.seed),
                                     "--transfer-timeout",
                                     std::to_string(options.transfer_timeout_ms)};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {option, value});
  };
  add("--segments", options.segments);
  add("--directory", options.directory);
  add("--nodes", fmt::format("{}", fmt::join(options.node_of_rank, ",")));
  add("--host", options.host);
  add("--data", options.data.path);
  add("--dump", options.dump_directory);
  add("--adopt", options.adopt_directory);
  add("--resume", options.resume);
  if (options.trace_steps > 0) add("--trace-steps", std::to_string(options.trace_steps));
  if (options.trace_descriptor >= 0) add("--trace-descriptor", std::to_string(options.trace_descriptor));
  if (options.adopt_ranks > 0) add("--adopt-ranks", std::to_string(options.adopt_ranks));
  if (options.dump.gradients) arguments.emplace_back("--dump-gradients");
  if (options.dump.parameters) arguments.emplace_back("--dump-parameters");
  if (options.dump.states) arguments.emplace_back("--dump-states");
  if (options.dump.outputs) arguments.emplace_back("--dump-outputs");
  if (options.data.end.drop_last) arguments.emplace_back("--drop-last");
  if (options.data.shuffle) arguments.emplace_back("--shuffle");
  if (options.data.shift_labels) arguments.emplace_back("--shift-labels");
  if (!options.check_finite) arguments.emplace_back("--allow-not-finite");
  return arguments;
}

WorkerOptions parseWorkerArguments(const std::vector<std::string>& arguments) {
  WorkerOptions options;
  const std::map<std::string, std::function<void(const std::string&)>> valued{
      {"--connect", [&](const std::string& text) { options.endpoint = text; }},
      {"--job", [&](const std::string& text) { options.job = text; }},
      {"--rank", [&](const std::string& text) { options.rank = RankId(parseNumber<int>("--rank", text)); }},
      {"--segments", [&](const std::string& text) { options.segments = text; }},
      {"--directory", [&](const std::string& text) { options.directory = text; }},
      {"--generation",
       [&](const std::string& text) { options.generation = parseNumber<uint64_t>("--generation", text); }},
      {"--parent", [&](const std::string& text) { options.parent = parseNumber<int>("--parent", text); }},
      {"--nodes", [&](const std::string& text) { options.node_of_rank = parseNumbers("--nodes", text); }},
      {"--host", [&](const std::string& text) { options.host = text; }},
      {"--seed", [&](const std::string& text) { options.data.seed = parseNumber<uint64_t>("--seed", text); }},
      {"--transfer-timeout",
       [&](const std::string& text) {
         options.transfer_timeout_ms = parseNumber<int64_t>("--transfer-timeout", text);
       }},
      {"--data", [&](const std::string& text) { options.data.path = text; }},
      {"--adopt", [&](const std::string& text) { options.adopt_directory = text; }},
      {"--resume", [&](const std::string& text) { options.resume = text; }},
      {"--adopt-ranks",
       [&](const std::string& text) { options.adopt_ranks = parseNumber<int>("--adopt-ranks", text); }},
      {"--trace-steps",
       [&](const std::string& text) { options.trace_steps = parseNumber<int64_t>("--trace-steps", text); }},
      {"--trace-descriptor",
       [&](const std::string& text) {
         options.trace_descriptor = parseNumber<int>("--trace-descriptor", text);
       }},
      {"--dump", [&](const std::string& text) { options.dump_directory = text; }}};
  const std::map<std::string, std::function<void()>> flags{
      {"--dump-gradients", [&] { options.dump.gradients = true; }},
      {"--dump-parameters", [&] { options.dump.parameters = true; }},
      {"--dump-states", [&] { options.dump.states = true; }},
      {"--dump-outputs", [&] { options.dump.outputs = true; }},
      {"--drop-last", [&] { options.data.end.drop_last = true; }},
      {"--shuffle", [&] { options.data.shuffle = true; }},
      {"--shift-labels", [&] { options.data.shift_labels = true; }},
      {"--allow-not-finite", [&] { options.check_finite = false; }}};
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (const auto flag = flags.find(arguments[i]); flag != flags.end()) {
      flag->second();
      continue;
    }
    const auto found = valued.find(arguments[i]);
    if (found == valued.end())
      fail(ErrorCode::kUsage, "worker: unknown argument '{}'; workers are started by the coordinator",
           arguments[i]);
    if (++i == arguments.size()) fail(ErrorCode::kUsage, "worker: {} needs a value", found->first);
    found->second(arguments[i]);
  }
  return options;
}

std::vector<std::string> workerEnvironment(const WorkerOptions& options) {
  if (!options.keys) return {};
  return {fmt::format("{}={}", kClientKeysVariable, clientKeysText(*options.keys))};
}

int workerMain(const WorkerOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != options.parent) return static_cast<int>(ErrorCode::kPeerUnavailable);
  try {
    if (options.endpoint.empty() || options.job.empty() || options.segments.empty() ||
        options.directory.empty()) {
      fail(ErrorCode::kUsage,
           "--connect, --job, --segments and --directory are needed; workers are started by a coordinator or "
           "a node");
    }
    return workAndReport(options);
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
