#include "runtime/job/worker_commands.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/checkpoint/replica_hashes.h"
#include "runtime/files/content_hash.h"
#include "runtime/messages/control_types.h"
#include "transport/control/control_message.h"

namespace pipeshard {
namespace {

// For a checkpoint to be written before the next one: other ranks wait in their steps meanwhile; at the end
// nobody does, and the coordinator has a deadline.
constexpr std::chrono::milliseconds kPatienceBetweenSteps = std::chrono::seconds(5);
constexpr std::chrono::milliseconds kPatienceAtTheEnd = std::chrono::hours(24);

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
    const StepSize size = runner.sizeOf(step);
    if (size.last_batch) body["last_batch"] = true;
    if (size.length > 0) body["length"] = size.length;
    for (const auto& [name, value] : report.measures)
      body["measures"].push_back({{"name", name}, {"value", value}});
    if (const std::optional<int64_t> bytes = memory.look()) body["resident_bytes"] = *bytes;
    if (!options.dump_directory.empty()) {
      body["dump"] =
          writeStepDump(executor, options.dump_directory, step, options.dump, window ? &*window : nullptr);
    }
    link.send(control::kStep, std::move(body));
    if (report.applied || !(options.check_finite || report.scale_spent)) continue;
    while (link.next().type != control::kStop) {
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
    link.send(control::kHashes, {{"step", step}, {"parts", parts}, {"last", end == hashes.size()}});
    if (end == begin) return;  // it keeps nothing
  }
}

void sendSaved(WorkerLink& link, const SavedPart& part) {
  nlohmann::json body = {{"step", part.step},
                         {"file", part.file.name},
                         {"bytes", part.file.bytes},
                         {"hash", hashText(part.file.hash)}};
  if (!part.error.empty()) body["error"] = part.error;
  if (part.not_finite) body["not_finite"] = true;
  link.send(control::kSaved, std::move(body));
}

void evaluate(WorkerLink& link, RankEvaluation& evaluation, int64_t first, int64_t last) {
  const auto losses = evaluation.run(first, last, [&] { return !link.stopRequested(); });
  nlohmann::json body = {{"last", last}};
  if (losses) body.update({{"losses", losses->sum}, {"weight", losses->weight}});
  link.send(control::kEvaluated, std::move(body));
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
    link.send(control::kOperators, {{"steps", times.steps()},
                                    {"seconds", times.stepSeconds()},
                                    {"flops", rates.flops},
                                    {"bytes", rates.bytes},
                                    {"nodes", std::move(nodes)}});
  }
}

}  // namespace

void followCommands(const WorkerOptions& options, WorkerLink& link, StepRunner& runner,
                    RankEvaluation* evaluation, NodeTimes* times) {
  CheckpointWriter writer([&](const SavedPart& part) { sendSaved(link, part); });
  bool looks_at_end = false;
  while (true) {
    const ControlMessage command = link.next();
    if (command.type == control::kStop) return;
    if (command.type == kFault)
      fail(ErrorCode::kInternal, "worker: {}", command.body.at("message").get<std::string>());
    if (command.type == control::kRun) {
      if (!runSteps(options, link, runner, times, command.body.at("first").get<int64_t>(),
                    command.body.at("last").get<int64_t>()))
        return;
    } else if (command.type == control::kEvaluate && evaluation != nullptr) {
      evaluate(link, *evaluation, command.body.at("first").get<int64_t>(),
               command.body.at("last").get<int64_t>());
    } else if (command.type == control::kWatch) {
      writer.watch(runner.main());
      // For tests of what a step's own end waits for: nothing is behind it then.
      looks_at_end = command.body.at("at_end").get<bool>() && std::getenv("PIPESHARD_UNSEEN_END") == nullptr;
    } else if (command.type == control::kCheck) {
      sendHashes(link, runner.main(), command.body.at("step").get<int64_t>());
    } else if (command.type == control::kSave) {
      const std::vector<SavedBuffer> buffers = savedBuffersFromJson(command.body.at("buffers"));
      requireSaved(runner.main().program(), buffers);
      writer.save(runner.main(), buffers, command.body.at("step").get<int64_t>(),
                  command.body.at("folder").get<std::string>(),
                  command.body.at("last").get<bool>() ? kPatienceAtTheEnd : kPatienceBetweenSteps);
    } else if (command.type == control::kFinish) {
      writer.finish();
      if (looks_at_end) writer.state().requireFinite(runner.main());
      const int64_t peak = peakResidentBytes();
      if (times != nullptr) sendOperators(link, runner.main().program(), *times);
      link.send(control::kFinished,
                {{"peak_resident_bytes", peak}, {"peak_device_bytes", runner.main().device().peakBytes()}});
    } else {
      fail(ErrorCode::kInternal, "worker: unknown command '{}'", command.type);
    }
  }
}

}  // namespace pipeshard
