#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <unistd.h>

#include "ir/base/amounts.h"
#include "ir/base/text_file.h"
#include "planning/directory/plan_directory.h"
#include "runtime/execute/rank_image.h"
#include "runtime/job/child_process.h"
#include "runtime/job/coordinator.h"
#include "runtime/job/job.h"
#include "runtime/job/outputs.h"
#include "runtime/job/restarts.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options/checkpoint_options.h"
#include "tools/options/job_options.h"
#include "tools/options/node_options.h"
#include "tools/options/option_checks.h"
#include "tools/options/trace_options.h"
#include "tools/output/run_file.h"
#include "tools/output/standard_streams.h"
#include "tools/refresh.h"
#include "tools/run_log.h"
#include "tools/scratch_folder.h"

namespace pipeshard {
namespace {

// "3m 20s", "45s".
std::string formatDuration(double seconds) {
  const int64_t whole = std::llround(seconds);
  if (whole >= 3600) return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  return whole >= 60 ? fmt::format("{}m {:02}s", whole / 60, whole % 60) : fmt::format("{}s", whole);
}

// One line per step worth telling: the first, the last, and at most one a second; on a terminal the line is
// rewritten. And what becomes of checkpoints.
class StepLines {
 public:
  explicit StepLines(int64_t steps) : steps_(steps), terminal_(isatty(STDOUT_FILENO) == 1) {}

  void show(const JobProgress& event) {
    using Kind = JobProgress::Kind;
    if (event.kind == Kind::kResumed) print("going on after step {} ({})", event.step, event.text);
    if (event.kind == Kind::kCheckpoint) print("checkpoint: {}", event.text);
    if (event.kind == Kind::kStep) showStep(event);
  }

 private:
  template <typename... Args>
  void print(fmt::format_string<Args...> text, Args&&... args) {
    if (terminal_) printControl(stdout, kEraseLine);
    fmt::print("{}\n", fmt::format(text, std::forward<Args>(args)...));
    std::fflush(stdout);
  }

  void showStep(const JobProgress& event) {
    const auto now = std::chrono::steady_clock::now();
    const bool is_first = before_first_ < 0;
    if (is_first) {
      first_ = now;
      before_first_ = event.step - 1;
    }
    if (!is_first && event.step != steps_ && now - shown_ < std::chrono::seconds(1)) return;
    shown_ = now;
    const double elapsed = std::chrono::duration<double>(now - first_).count() + event.seconds;
    const double rate = static_cast<double>(event.step - before_first_) / std::max(elapsed, 1e-9);
    const std::string text = fmt::format("step {}/{}{}  {:.2f} steps/s  {} left", event.step, steps_,
                                         event.loss ? fmt::format("  loss {:.6g}", *event.loss) : "", rate,
                                         formatDuration(static_cast<double>(steps_ - event.step) / rate));
    if (terminal_) {
      printControl(stdout, kEraseLine);
      fmt::print("{}{}", text, event.step == steps_ ? "\n" : "");
    } else {
      fmt::print("{}\n", text);
    }
    std::fflush(stdout);
  }

  int64_t steps_;
  bool terminal_;
  int64_t before_first_ = -1;  // steps that were done before the first that is shown
  std::chrono::steady_clock::time_point first_;
  std::chrono::steady_clock::time_point shown_;
};

struct RunCommand {
  std::string directory;
  std::string json;
  std::string outputs;
  std::string log;
  int64_t epochs = 0;  // 0: as many steps as --steps says
  JobSpec job;
  CheckpointOptions checkpoint;
  ListenOptions listen;
  TraceOptions trace;

  int run() {
    RunFile file(json);
    if (!outputs.empty()) requireWritable(outputs);
    trace.apply(job);
    makePrograms();
    const Plan plan = readPlanDirectory(directory);
    job.plan_directory = std::filesystem::absolute(directory).string();
    const bool trains = plan.given.optimizer.kind != OptimizerSpec::Kind::kNone;
    if (!trains && !checkpoint.directory.empty())
      fail(ErrorCode::kUsage, "--checkpoint {}: the plan {} is an evaluation and trains nothing",
           checkpoint.directory, directory);
    job.checkpoint = checkpoint.spec();
    const std::vector<Result> given = outputsToWrite();
    // Hosts share the folder that people work in more often than /tmp.
    const ScratchFolder scratch(listen.listen.empty() ? std::filesystem::temp_directory_path()
                                                      : std::filesystem::current_path());
    job.dump.outputs = !given.empty();
    job.dump.parameters = !job.dump_directory.empty();
    if (!given.empty() && job.dump_directory.empty()) job.dump_directory = scratch.path().string();
    if (!job.data.path.empty()) job.data.path = std::filesystem::absolute(job.data.path).string();
    lookAtData();
    const std::unique_ptr<NodePool> nodes = listenForNodes(listen, plan.cluster, job);
    if (!nodes) noteCrowding(countRanks(job.plan_directory));
    const auto batch = plan.dimensions.find(plan.batch_dimension);
    RunLog run_log(log, batch == plan.dimensions.end() ? 0 : batch->second);
    job.kept_steps = 1;
    StepLines lines(job.steps);
    TraceWriter writer(trace);
    if (nodes && checkpoint.restarts > 0)
      fail(ErrorCode::kUsage,
           "--restarts works on one machine as yet: node daemons end with the job; leave out --listen");
    const JobResult result = runWithRestarts(job, checkpoint.restarts, [&](const JobProgress& event) {
      showNodes(event);
      lines.show(event);
      run_log.take(event);
      file.take(event);
    });
    if (result.steps_done == 0) {
      fmt::print("nothing is left to do: {} has {} steps; more by --steps\n", result.checkpoint,
                 result.resumed_step);
      return 0;
    }
    int64_t peak = 0;
    for (const RankResult& rank : result.ranks) peak = std::max(peak, rank.peak_resident_bytes);
    const std::optional<double>& first_loss = file.firstLoss();
    fmt::print(
        "{} steps on {} worker{}; {}largest worker {}\n", result.steps_done, result.ranks.size(),
        result.ranks.size() == 1 ? "" : "s",
        first_loss ? fmt::format("loss {:.6g} -> {:.6g}; ", *first_loss, *result.steps.back().loss) : "",
        formatBytes(peak));
    if (trains) tellWhereWeightsAre(result);
    writer.finish();
    if (!given.empty()) {
      writeOutputs(given, job.dump_directory, result.steps_done, std::ssize(result.ranks), outputs);
      fmt::print("outputs: {}\n", outputs);
    }
    file.finish(result);
    return 0;
  }

  // Says what the data are, and makes steps of epochs. With nodes the data may be where the workers are, and
  // not here.
  void lookAtData() {
    if (job.data.path.empty() && epochs > 0)
      fail(ErrorCode::kUsage, "--epochs goes with --data: synthetic data have no end; give --steps");
    if (!listen.listen.empty() && epochs == 0 && !std::filesystem::exists(job.data.path)) return;
    const DataSummary data = summarizeData(job);
    if (!data.text.empty()) fmt::print("data: {}\n", data.text);
    if (epochs > INT64_MAX / std::max<int64_t>(1, data.steps_per_epoch))
      fail(ErrorCode::kUsage, "--epochs {}: more steps than can be counted", epochs);
    if (epochs > 0) job.steps = epochs * data.steps_per_epoch;
  }

  static void tellWhereWeightsAre(const JobResult& result) {
    if (result.checkpoint.empty()) {
      fmt::print("the trained weights are gone now: --checkpoint DIR saves them\n");
    } else {
      fmt::print("saved: {}; `pipeshard export {} -o trained.onnx` makes the trained model of it\n",
                 result.checkpoint, result.checkpoint);
    }
  }

  // What --outputs asks for.
  std::vector<Result> outputsToWrite() const {
    if (outputs.empty()) return {};
    std::vector<Result> given = listedOutputs(job.plan_directory);
    if (!given.empty()) return given;
    fail(ErrorCode::kUsage,
         "--outputs {}: the plan {} gives no outputs; those of a model are there when it is planned with "
         "--schedule forward-only",
         outputs, directory);
  }

  // Of a plan that was made without them, or edited since.
  void makePrograms() const {
    SignalWatch signals;  // a half-written folder is removed before the command ends
    Progress progress;
    refreshEdited(directory, [&](const std::string& phase) {
      if (const int signal = signals.take(); signal != 0) {
        throw JobInterrupted(signal,
                             checkpoint.directory.empty() ? std::nullopt : std::optional(std::string()));
      }
      progress.phase(phase);
    });
  }
};

}  // namespace

CommandFunction addRunCommand(CLI::App& app) {
  auto command = std::make_shared<RunCommand>();
  CLI::App* sub = app.add_subcommand("run", "Train a planned model for some steps");
  sub->add_option("DIR", command->directory, "A plan directory, as `pipeshard plan` writes it")->required();
  CLI::Option* steps =
      sub->add_option(
             "--steps", command->job.steps,
             "How many training steps in all; a run that goes on from a checkpoint does what is left")
          ->check(positiveWhole())
          ->capture_default_str();
  sub->add_option("--epochs", command->epochs,
                  "Instead of --steps: how often every example of --data is used")
      ->check(positiveWhole())
      ->excludes(steps);
  addJobOptions(*sub, command->job);
  addListenOptions(*sub, command->listen);
  command->checkpoint.add(*sub);
  command->trace.add(*sub);
  sub->add_option("--dump", command->job.dump_directory,
                  "Write loss and parameters of every step here, as safetensors")
      ->type_name("DIR");
  sub->add_option("--outputs", command->outputs,
                  "Of a plan with the schedule forward-only: write what the model gives for all batches here")
      ->type_name("FILE.npz");
  sub->add_option("--log", command->log,
                  "Write a line per step here while running: steps.jsonl, steps.csv, and events.jsonl")
      ->type_name("DIR");
  sub->add_option("--json", command->json, "Also write losses, times and memory to this file")
      ->type_name("FILE");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
