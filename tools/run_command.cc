#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <unistd.h>

#include "ir/base/amounts.h"
#include "ir/base/counted.h"
#include "ir/base/text_file.h"
#include "planning/directory/evaluation_folder.h"
#include "planning/directory/plan_directory.h"
#include "planning/programs/step_programs.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/token_file.h"
#include "runtime/evaluation/outputs.h"
#include "runtime/execute/rank_image.h"
#include "runtime/identity/plan_mark.h"
#include "runtime/job/child_process.h"
#include "runtime/job/coordinator.h"
#include "runtime/job/job.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/observe/metrics_page.h"
#include "tools/observe/metrics_server.h"
#include "tools/observe/operator_table.h"
#include "tools/observe/progress_line.h"
#include "tools/observe/run_figures.h"
#include "tools/observe/run_log.h"
#include "tools/options/checkpoint_options.h"
#include "tools/options/job_options.h"
#include "tools/options/node_options.h"
#include "tools/options/option_checks.h"
#include "tools/options/trace_options.h"
#include "tools/output/run_file.h"
#include "tools/output/standard_streams.h"
#include "tools/refresh.h"
#include "tools/restarts.h"
#include "tools/scratch_folder.h"

namespace pipeshard {
namespace {

// What becomes of a step that ends in NaN (--on-nan).
enum class OnNan { kStop, kSkip, kRewind, kFind };

constexpr std::array<std::string_view, 4> kOnNanNames = {"stop", "skip", "rewind", "find"};  // by value

// Of one of those names.
OnNan onNanOf(std::string_view name) {
  return static_cast<OnNan>(std::find(kOnNanNames.begin(), kOnNanNames.end(), name) - kOnNanNames.begin());
}

constexpr const char* kWeightsAreGone = "the trained weights are gone now: --checkpoint DIR saves them";

// --metrics, where it is given.
class RunMetrics {
 public:
  RunMetrics(const std::string& address, const RunFacts& facts) : page_(facts) {
    if (address.empty()) return;
    server_.emplace(parseMetricsAddress(address));
    server_->publish(page_.text());
    fmt::print("metrics: {}\n", server_->url());
  }

  void take(const JobProgress& event, const RunFigures& figures) {
    if (!server_) return;
    page_.take(event, figures);
    const auto now = std::chrono::steady_clock::now();
    const bool is_step = event.kind == JobProgress::Kind::kStep;
    if (is_step && event.step != figures.steps && now - published_ < std::chrono::milliseconds(100)) return;
    published_ = now;
    server_->publish(page_.text());
  }

 private:
  MetricsPage page_;
  std::optional<MetricsServer> server_;
  std::chrono::steady_clock::time_point published_;
};

struct RunCommand {
  const CLI::App* command = nullptr;
  std::string directory;
  std::string json;
  std::string outputs;
  std::string log;
  std::string metrics;          // HOST:PORT; "": none
  std::optional<OnNan> on_nan;  // not given: what the plan's precision asks for
  int64_t epochs = 0;           // 0: as many steps as --steps says
  JobSpec job;
  CheckpointOptions checkpoint;
  ListenOptions listen;
  std::optional<SignalWatch> signals;
  std::unique_ptr<NodePool> nodes;  // while it listens
  TraceOptions trace;

  int run() {
    ProgressLine line;
    const auto notice = [&](const std::string& text) {
      line.endLine();
      fmt::print(stderr, "{}\n", text);
    };
    refuseInVain();
    RunFile file(json, notice);
    if (!outputs.empty()) requireWritable(outputs);
    trace.apply(job);
    if (job.operators && job.device.backend != DeviceBackend::kCpu)
      fail(ErrorCode::kUsage,
           "--operators times operators on the CPU; of a GPU, `profile --device cuda` measures them");
    makePrograms();
    job.plan_directory = std::filesystem::absolute(directory).string();
    job.plan_mark = planMark(job.plan_directory);
    const Plan plan = readPlanDirectory(directory);
    const bool trains = plan.given.optimizer.kind != OptimizerSpec::Kind::kNone;
    if (!trains && !checkpoint.directory.empty())
      fail(ErrorCode::kUsage, "--checkpoint {}: the plan {} is an evaluation and trains nothing",
           checkpoint.directory, directory);
    if (!log.empty()) job.log_directory = std::filesystem::absolute(log).string();
    job.checkpoint = checkpoint.spec();
    job.check_replicas = checkpoint.check_replicas;
    const std::vector<Result> given = outputsToWrite(trains);
    job.dump.outputs = !given.empty();
    job.dump.parameters = !job.dump_directory.empty();
    if (!job.data.path.empty() && !isPipe(job.data))
      job.data.path = std::filesystem::absolute(job.data.path).string();
    lookAtData(plan);
    lookAtHeldOutData();
    RestartOptions restarts =
        prepareRestarts(checkpoint.restarts, directory, checkpoint.directory, !listen.listen.empty());
    for (FewerPlan& fewer : restarts.fewer) lookAtHeldOutData(fewer);
    decideOnNan(plan, restarts);
    job.signals = &signals.emplace();  // from here on: none may leave the scratch folder or the keys behind
    const std::unique_ptr<ScratchFolder> scratch = scratchForOutputs();
    const bool keeps_nodes = restarts.restarts > 0 || restarts.rewinds;
    nodes = listenForNodes(listen, plan.cluster, job, keeps_nodes);
    if (!nodes) noteCrowding(countRanks(job.plan_directory));
    job.kept_steps = 1;
    const RunFacts facts = factsOf(plan);
    RunLog run_log(log, notice);
    TraceWriter writer(trace);
    const JobResult result = train(restarts, facts, line, run_log, file);
    tellHowItEnded(result, file, trains);
    if (file.stepsDone() == 0 && !file.hasEvaluations()) return 0;
    writer.finish();
    if (!given.empty()) {
      writeOutputs(given, job.dump_directory, result.steps_done, std::ssize(result.ranks), outputs);
      fmt::print("outputs: {}\n", outputs);
    }
    file.finish(result, file.stepsDone() > 0 ? tellOfOperators(result) : "");
    run_log.requireWhole();
    return 0;
  }

  // Outputs come from dumps: in a folder that goes with the command, unless --dump names one.
  std::unique_ptr<ScratchFolder> scratchForOutputs() {
    if (!job.dump.outputs || !job.dump_directory.empty()) return nullptr;
    auto scratch = std::make_unique<ScratchFolder>(!listen.listen.empty());
    job.dump_directory = scratch->path().string();
    return scratch;
  }

  // Options that would do nothing.
  void refuseInVain() const {
    refuseJobOptionsInVain(*command, job);
    refuseListenOptionsInVain(*command, listen);
    if (trace.file.empty()) pipeshard::refuseInVain(*command, {"--trace-steps"}, "--trace FILE");
    if (!outputs.empty() && job.data.shuffle)
      fail(ErrorCode::kUsage,
           "--outputs {}: its rows are those of the data in their order, which --shuffle changes; leave out "
           "--shuffle",
           outputs);
  }

  // Shows and writes what happens. What was done is in the file also where the job ends early.
  JobResult train(const RestartOptions& restarts, const RunFacts& facts, ProgressLine& line, RunLog& run_log,
                  RunFile& file) const {
    RunMeter meter(facts);
    RunMetrics metrics_of_run(metrics, facts);
    try {
      return runWithRestarts(job, restarts, [&](const JobProgress& event) {
        if (event.kind == JobProgress::Kind::kNotice) line.endLine();
        showNodes(event);
        meter.take(event);
        line.show(event, meter.figures());
        run_log.take(event, meter.figures());
        metrics_of_run.take(event, meter.figures());
        file.take(event);
      });
    } catch (const Error& error) {
      line.endLine();
      file.finishEarly(error.message());
      const bool trains = facts.optimizer.kind != OptimizerSpec::Kind::kNone;
      if (job.checkpoint.directory.empty() && trains && file.stepsDone() > 0)
        fmt::print("{}\n", kWeightsAreGone);
      throw;
    }
  }

  void tellHowItEnded(const JobResult& result, const RunFile& file, bool trains) const {
    if (file.stepsDone() == 0) {
      fmt::print("nothing is left to {}: {} has {} steps; more by --steps\n",
                 file.hasEvaluations() ? "train" : "do", result.checkpoint, result.resumed_step);
      return;
    }
    int64_t peak = 0;
    for (const RankResult& rank : result.ranks) peak = std::max(peak, rank.peak_resident_bytes);
    const std::optional<double>&first = file.firstLoss(), &last = file.lastLoss();
    fmt::print("{} on {}; {}largest worker {}\n", counted(file.stepsDone(), "step"),
               counted(std::ssize(result.ranks), "worker"),
               first && last ? fmt::format("loss {:.6g} -> {:.6g}; ", *first, *last) : "", formatBytes(peak));
    if (!log.empty()) fmt::print("log: {}; `pipeshard report {} --log {}` draws it\n", log, directory, log);
    if (file.stepsLeftOut() > 0)
      fmt::print("{} of them left out: their gradients were not finite\n", file.stepsLeftOut());
    if (trains) tellWhereWeightsAre(result);
  }

  // Prints the table of --operators; the same as JSON, "" without it.
  std::string tellOfOperators(const JobResult& result) const {
    if (!job.operators) return "";
    if (planMark(job.plan_directory) != job.plan_mark) {
      fmt::print(stderr, "warning: no table of operators: the plan {} was replaced while this run used it\n",
                 directory);
      return "";
    }
    const OperatorTable table = tabulateOperators(job, result);
    fmt::print("{}", printOperators(table));
    return operatorsToJson(table);
  }

  RunFacts factsOf(const Plan& plan) const {
    ProgramFolder folder(job.plan_directory);
    return runFacts(plan, folder, job);
  }

  // As the programs of a plan evaluate them, which are made where they are not there yet.
  EvaluationSpec evaluationOf(const std::string& plan_directory, std::string& text) const {
    EvaluationSpec evaluation = job.evaluation;
    SignalWatch signals;
    Progress progress;
    const auto say = [&](const std::string& phase) {
      if (const int signal = signals.take(); signal != 0) throw JobInterrupted(signal);
      progress.phase(phase);
    };
    EvaluationFolder folder = prepareEvaluation(plan_directory, evaluation.data, say);
    evaluation.rows = folder.rows;
    evaluation.batches = folder.batches;
    evaluation.divisor = folder.divisor;
    evaluation.adds = folder.adds;
    evaluation.exact = folder.exact;
    evaluation.data.end.drop_last = folder.drop_last;
    text = std::move(folder.text);
    return evaluation;
  }

  void lookAtHeldOutData() {
    DataDescription& held_out = job.evaluation.data;
    if (held_out.path.empty()) return;
    if (!isPipe(held_out)) held_out.path = std::filesystem::absolute(held_out.path).string();
    held_out.seed = job.data.seed;
    held_out.truncate = job.data.truncate;
    held_out.padding = job.data.padding;
    if (tokenTypeOf(held_out.path) != DataType::kUndefined) {
      held_out.shift_labels = job.data.shift_labels;
      held_out.end_of_text = job.data.end_of_text;
    }
    std::string text;
    job.evaluation = evaluationOf(directory, text);
    fmt::print("held-out data: {}\n", text);
  }

  // A plan for fewer devices that cannot evaluate trains all the same.
  void lookAtHeldOutData(FewerPlan& fewer) const {
    if (!job.evaluation.asked()) return;
    try {
      std::string text;
      fewer.evaluation = evaluationOf(fewer.directory, text);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfiguration && error.code() != ErrorCode::kBadModel) throw;
      fmt::print(stderr, "note: {} trains without evaluation: {}\n", fewer.directory, error.message());
    }
  }

  // A step that ends in NaN can be left out where the plan takes the norm of all gradients before it makes
  // the update.
  void decideOnNan(const Plan& plan, RestartOptions& restarts) {
    const bool scales_loss = plan.given.precision == DataType::kFloat16;
    const OnNan decided = on_nan.value_or(scales_loss ? OnNan::kSkip : OnNan::kStop);
    if (decided == OnNan::kSkip && plan.given.clip_norm == 0 && !scales_loss) {
      fail(ErrorCode::kUsage,
           "--on-nan skip: the plan {} takes no norm of all gradients, so no rank knows whether others have "
           "finite ones; plan with --clip-norm X, or with --clip-norm inf, which scales nothing",
           directory);
    }
    if (decided == OnNan::kRewind && checkpoint.directory.empty())
      fail(ErrorCode::kUsage,
           "--on-nan rewind goes back to the newest checkpoint: it needs --checkpoint DIR");
    if (decided == OnNan::kSkip) job.check_finite = false;
    job.find_nan = decided == OnNan::kFind;
    restarts.rewinds = decided == OnNan::kRewind;
  }

  // Says what the data are, and makes steps of epochs. With nodes the data may be where the workers are, and
  // not here.
  void lookAtData(const Plan& plan) {
    job.data.end.whole_only = whyWholeBatchesOnly(plan);
    job.data.end.parts = stepMakeup(plan);
    if ((isSynthetic(job.data) || isPipe(job.data)) && epochs > 0) {
      fail(ErrorCode::kUsage, "--epochs goes with --data: {}; give --steps",
           isPipe(job.data) ? "where a loader's data end is not known" : "synthetic data have no end");
    }
    if (job.data.path == kStandardInput && checkpoint.restarts > 0) {
      fail(ErrorCode::kUsage,
           "--restarts: standard input cannot be read again; give the loader as --data-command");
    }
    const bool is_file = !isSynthetic(job.data) && !isPipe(job.data);
    if (!listen.listen.empty() && epochs == 0 && is_file && !std::filesystem::exists(job.data.path)) return;
    const DataSummary data = summarizeData(job);
    if (!data.text.empty()) fmt::print("data: {}\n", data.text);
    if (isSynthetic(job.data) && readsData() && !hasAllSteps())
      fmt::print("data: random numbers (no --data)\n");
    if (epochs > INT64_MAX / std::max<int64_t>(1, data.steps_per_epoch))
      fail(ErrorCode::kUsage, "--epochs {}: more steps than can be counted", epochs);
    if (epochs > 0) job.steps = epochs * data.steps_per_epoch;
  }

  // The model has inputs that no random number of its own fills.
  bool readsData() const {
    const std::vector<ProgramInput> inputs = loadProgram(job.plan_directory, RankId(0)).inputs;
    return std::any_of(inputs.begin(), inputs.end(), [](const ProgramInput& input) { return !input.drawn; });
  }

  // By its name, the newest checkpoint leaves nothing to train.
  bool hasAllSteps() const {
    const std::string newest = newestCheckpoint(checkpoint.directory);
    return stepOfCheckpoint(std::filesystem::path(newest).filename().string()) >= job.steps;
  }

  static void tellWhereWeightsAre(const JobResult& result) {
    if (result.checkpoint.empty()) {
      fmt::print("{}\n", kWeightsAreGone);
      return;
    }
    fmt::print("saved: {}; {}`pipeshard export {} -o trained.onnx` makes the trained model of it\n",
               result.checkpoint, partsToCopy(result.checkpoint), result.checkpoint);
  }

  // Of a checkpoint that is not all on this host's disk.
  static std::string partsToCopy(const std::string& directory) try {
    const Checkpoint checkpoint = readCheckpoint(directory);
    if (checkpoint.elsewhere.empty()) return "";
    return fmt::format("parts of it are on other hosts' disks, copy them: {}; then ",
                       describeElsewhere(checkpoint, checkpoint.elsewhere));
  } catch (const Error&) {
    return "";  // whoever reads it says what is wrong
  }

  // What --outputs asks for.
  std::vector<Result> outputsToWrite(bool trains) const {
    if (outputs.empty()) return {};
    std::vector<Result> given = listedOutputs(job.plan_directory);
    if (!given.empty()) return given;
    if (!trains) {
      fail(ErrorCode::kUsage,
           "--outputs {}: the only output of the model of {} is its loss; `run --json FILE` and `--log DIR` "
           "write the loss of every batch",
           outputs, directory);
    }
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
        throw JobInterrupted(signal, checkpoint.directory.empty()
                                         ? std::nullopt
                                         : std::optional(newestCheckpoint(checkpoint.directory)));
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
  CLI::Option* evaluation =
      sub->add_option("--eval", command->job.evaluation.data.path,
                      "Held-out data, in any format of --data but a pipe: their loss, with dropouts off and "
                      "nothing updated,\nafter the last step (which may be done already) and as --eval-every "
                      "says")
          ->type_name("FILE|DIR");
  sub->add_option("--eval-every", command->job.evaluation.every_steps,
                  "Evaluate after every so many steps, too")
      ->type_name("STEPS")
      ->check(positiveWhole())
      ->needs(evaluation);
  sub->add_flag("--eval-at-start", command->job.evaluation.at_start,
                "Evaluate before the first step, too; not in a run that goes on from a checkpoint (one that "
                "has all\nsteps is evaluated in any case)")
      ->needs(evaluation);
  addListenOptions(*sub, command->listen);
  command->checkpoint.add(*sub);
  command->trace.add(*sub);
  sub->add_option_function<std::string>(
         "--on-nan", [command](const std::string& name) { command->on_nan = onNanOf(name); },
         "A step with a loss or gradients that are not finite: stop (exit code 82), skip: leave it out on "
         "all\nranks (with a plan that has --clip-norm), rewind: go back to the newest checkpoint, once in a "
         "row,\nfind: look at every value of every step, and stop (82) at the first that is not a number,\n"
         "even where what reads it drops it and loss and gradients are finite; steps are slower (default: "
         "stop; with a plan in float16, whose scale halves then, skip)")
      ->check(CLI::IsMember(std::vector<std::string>(kOnNanNames.begin(), kOnNanNames.end())));
  sub->add_flag("--operators", command->job.operators,
                "Print what the operators of a step took: time, share, GFLOP/s, and what they would take at "
                "the best\nrates that kernels reach on this machine");
  sub->add_option("--dump", command->job.dump_directory,
                  "Write loss and parameters of every step here, as safetensors (with --listen:\n"
                  "in a folder that all hosts share)")
      ->type_name("DIR");
  sub->add_option("--outputs", command->outputs,
                  "Of a plan with the schedule forward-only: write what the model gives for all batches here")
      ->type_name("FILE.npz");
  sub->add_option(
         "--log", command->log,
         "Write a line per step here while running: steps.jsonl, steps.csv, evaluations.jsonl, "
         "events.jsonl,\n"
         "event files for TensorBoard, and in ranks/ what each rank says; `pipeshard report DIR --log` "
         "draws it")
      ->type_name("DIR");
  sub->add_option("--metrics", command->metrics,
                  "Serve the run's numbers at http://HOST:PORT/metrics, as Prometheus reads them (HOST: "
                  "127.0.0.1; PORT 0: any)")
      ->type_name("[HOST:]PORT");
  sub->add_option("--json", command->json, "Also write losses, times and memory to this file")
      ->type_name("FILE");
  command->command = sub;
  return [command] {
    return runWithNodes(
        command->listen, command->signals, command->nodes, [&] { return command->run(); }, reportError);
  };
}

}  // namespace pipeshard
