#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

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
#include "tools/options/job_options.h"
#include "tools/options/node_options.h"
#include "tools/options/run_options.h"
#include "tools/output/run_file.h"
#include "tools/output/standard_streams.h"
#include "tools/refresh.h"
#include "tools/restarts.h"
#include "tools/scratch_folder.h"

namespace pipeshard {
namespace {

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

// One run, as its options say.
class RunSession {
 public:
  // All outlive it; the latter two are made once it listens, and what is behind it uses them (runWithNodes).
  RunSession(const RunOptions& options, std::optional<SignalWatch>& signals, std::unique_ptr<NodePool>& nodes)
      : options_(options), signals_(signals), nodes_(nodes), job_(options.job), trace_(options.trace) {}

  // The exit code. Errors: of the options, the plan, the data and the job.
  int run(const CLI::App& command) {
    ProgressLine line;
    const auto notice = [&](const std::string& text) {
      line.endLine();
      fmt::print(stderr, "{}\n", text);
    };
    refuseRunOptionsInVain(command, options_);
    RunFile file(options_.json, notice);
    if (!options_.outputs.empty()) requireWritable(options_.outputs);
    trace_.apply(job_);
    if (job_.operators && job_.device.backend != DeviceBackend::kCpu)
      fail(ErrorCode::kUsage,
           "--operators times operators on the CPU; of a GPU, `profile --device cuda` measures them");
    makePrograms();
    job_.plan_directory = std::filesystem::absolute(options_.directory).string();
    job_.plan_mark = planMark(job_.plan_directory);
    const Plan plan = readPlanDirectory(options_.directory);
    const bool trains = plan.given.optimizer.kind != OptimizerSpec::Kind::kNone;
    if (!trains && !options_.checkpoint.directory.empty())
      fail(ErrorCode::kUsage, "--checkpoint {}: the plan {} is an evaluation and trains nothing",
           options_.checkpoint.directory, options_.directory);
    if (!options_.log.empty()) job_.log_directory = std::filesystem::absolute(options_.log).string();
    job_.check_weights = trains;
    job_.checkpoint = options_.checkpoint.spec();
    job_.check_replicas = options_.checkpoint.check_replicas;
    const std::vector<Result> given = outputsToWrite(trains);
    job_.dump.outputs = !given.empty();
    job_.dump.parameters = !job_.dump_directory.empty();
    if (!job_.data.path.empty() && !isPipe(job_.data))
      job_.data.path = std::filesystem::absolute(job_.data.path).string();
    lookAtData(plan);
    lookAtHeldOutData();
    RestartOptions restarts = prepareRestarts(options_.checkpoint.restarts, options_.directory,
                                              options_.checkpoint.directory, !options_.listen.listen.empty());
    for (FewerPlan& fewer : restarts.fewer) lookAtHeldOutData(fewer);
    decideOnNan(plan, restarts);
    job_.signals = &signals_.emplace();  // from here on: none may leave the scratch folder or the keys behind
    const std::unique_ptr<ScratchFolder> scratch = scratchForOutputs();
    const bool keeps_nodes = restarts.restarts > 0 || restarts.rewinds;
    nodes_ = listenForNodes(options_.listen, plan.cluster, job_, keeps_nodes);
    if (!nodes_) noteCrowding(countRanks(job_.plan_directory));
    job_.kept_steps = 1;
    const RunFacts facts = factsOf(plan);
    RunLog run_log(options_.log, notice);
    trace_.requireSpace(job_);
    TraceWriter writer(trace_);
    const JobResult result = train(restarts, facts, line, run_log, file);
    tellHowItEnded(result, file, trains);
    if (file.stepsDone() == 0 && !file.hasEvaluations()) return 0;
    writer.finish();
    if (!given.empty()) {
      writeOutputs(given, job_.dump_directory, result.steps_done, std::ssize(result.ranks), options_.outputs);
      fmt::print("outputs: {}\n", options_.outputs);
    }
    file.finish(result, file.stepsDone() > 0 ? tellOfOperators(result) : "");
    run_log.requireWhole();
    return 0;
  }

 private:
  // Outputs come from dumps: in a folder that goes with the command, unless --dump names one.
  std::unique_ptr<ScratchFolder> scratchForOutputs() {
    if (!job_.dump.outputs || !job_.dump_directory.empty()) return nullptr;
    auto scratch = std::make_unique<ScratchFolder>(!options_.listen.listen.empty());
    job_.dump_directory = scratch->path().string();
    return scratch;
  }

  // Shows and writes what happens. What was done is in the file also where the job ends early.
  JobResult train(const RestartOptions& restarts, const RunFacts& facts, ProgressLine& line, RunLog& run_log,
                  RunFile& file) const {
    RunMeter meter(facts);
    RunMetrics metrics_of_run(options_.metrics, facts);
    try {
      return runWithRestarts(job_, restarts, [&](const JobProgress& event) {
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
      const bool may_be_saved = error.code() != ErrorCode::kNotANumber;  // what is not finite never is
      if (job_.checkpoint.directory.empty() && trains && may_be_saved && file.stepsDone() > 0)
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
    if (!options_.log.empty())
      fmt::print("log: {}; `pipeshard report {} --log {}` draws it\n", options_.log, options_.directory,
                 options_.log);
    if (file.stepsLeftOut() > 0)
      fmt::print("{} of them left out: their gradients were not finite\n", file.stepsLeftOut());
    if (trains) tellWhereWeightsAre(result);
  }

  // Prints the table of --operators; the same as JSON, "" without it.
  std::string tellOfOperators(const JobResult& result) const {
    if (!job_.operators) return "";
    if (planMark(job_.plan_directory) != job_.plan_mark) {
      fmt::print(stderr, "warning: no table of operators: the plan {} was replaced while this run used it\n",
                 options_.directory);
      return "";
    }
    const OperatorTable table = tabulateOperators(job_, result);
    fmt::print("{}", printOperators(table));
    return operatorsToJson(table);
  }

  RunFacts factsOf(const Plan& plan) const {
    ProgramFolder folder(job_.plan_directory);
    return runFacts(plan, folder, job_);
  }

  // As the programs of a plan evaluate them, which are made where they are not there yet.
  EvaluationSpec evaluationOf(const std::string& plan_directory, std::string& text) const {
    EvaluationSpec evaluation = job_.evaluation;
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
    DataDescription& held_out = job_.evaluation.data;
    if (held_out.path.empty()) return;
    if (!isPipe(held_out)) held_out.path = std::filesystem::absolute(held_out.path).string();
    held_out.seed = job_.data.seed;
    held_out.truncate = job_.data.truncate;
    held_out.padding = job_.data.padding;
    if (tokenTypeOf(held_out.path) != DataType::kUndefined) {
      held_out.shift_labels = job_.data.shift_labels;
      held_out.end_of_text = job_.data.end_of_text;
    }
    std::string text;
    job_.evaluation = evaluationOf(options_.directory, text);
    fmt::print("held-out data: {}\n", text);
  }

  // A plan for fewer devices that cannot evaluate trains all the same.
  void lookAtHeldOutData(FewerPlan& fewer) const {
    if (!job_.evaluation.asked()) return;
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
    const OnNan decided = options_.on_nan.value_or(scales_loss ? OnNan::kSkip : OnNan::kStop);
    if (decided == OnNan::kSkip && plan.given.clip_norm == 0 && !scales_loss) {
      fail(ErrorCode::kUsage,
           "--on-nan skip: the plan {} takes no norm of all gradients, so no rank knows whether others have "
           "finite ones; plan with --clip-norm X, or with --clip-norm inf, which scales nothing",
           options_.directory);
    }
    if (decided == OnNan::kRewind && options_.checkpoint.directory.empty())
      fail(ErrorCode::kUsage,
           "--on-nan rewind goes back to the newest checkpoint: it needs --checkpoint DIR");
    if (decided == OnNan::kSkip) job_.check_finite = false;
    job_.find_nan = decided == OnNan::kFind;
    restarts.rewinds = decided == OnNan::kRewind;
  }

  // Says what the data are, and makes steps of epochs. With nodes the data may be where the workers are, and
  // not here.
  void lookAtData(const Plan& plan) {
    job_.data.end.whole_only = whyWholeBatchesOnly(plan);
    job_.data.end.parts = stepMakeup(plan);
    if ((isSynthetic(job_.data) || isPipe(job_.data)) && options_.epochs > 0) {
      fail(ErrorCode::kUsage, "--epochs goes with --data: {}; give --steps",
           isPipe(job_.data) ? "where a loader's data end is not known" : "synthetic data have no end");
    }
    if (job_.data.path == kStandardInput && options_.checkpoint.restarts > 0) {
      fail(ErrorCode::kUsage,
           "--restarts: standard input cannot be read again; give the loader as --data-command");
    }
    const bool is_file = !isSynthetic(job_.data) && !isPipe(job_.data);
    if (!options_.listen.listen.empty() && options_.epochs == 0 && is_file &&
        !std::filesystem::exists(job_.data.path))
      return;
    const DataSummary data = summarizeData(job_);
    if (!data.text.empty()) fmt::print("data: {}\n", data.text);
    if (isSynthetic(job_.data) && readsData() && !hasAllSteps())
      fmt::print("data: random numbers (no --data)\n");
    if (options_.epochs > INT64_MAX / std::max<int64_t>(1, data.steps_per_epoch))
      fail(ErrorCode::kUsage, "--epochs {}: more steps than can be counted", options_.epochs);
    if (options_.epochs > 0) job_.steps = options_.epochs * data.steps_per_epoch;
  }

  // The model has inputs that no random number of its own fills.
  bool readsData() const {
    const std::vector<ProgramInput> inputs = loadProgram(job_.plan_directory, RankId(0)).inputs;
    return std::any_of(inputs.begin(), inputs.end(), [](const ProgramInput& input) { return !input.drawn; });
  }

  // By its name, the newest checkpoint leaves nothing to train.
  bool hasAllSteps() const {
    const std::string newest = newestCheckpoint(options_.checkpoint.directory);
    return stepOfCheckpoint(std::filesystem::path(newest).filename().string()) >= job_.steps;
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
    if (options_.outputs.empty()) return {};
    std::vector<Result> given = listedOutputs(job_.plan_directory);
    if (!given.empty()) return given;
    if (!trains) {
      fail(ErrorCode::kUsage,
           "--outputs {}: the only output of the model of {} is its loss; `run --json FILE` and `--log DIR` "
           "write the loss of every batch",
           options_.outputs, options_.directory);
    }
    fail(ErrorCode::kUsage,
         "--outputs {}: the plan {} gives no outputs; those of a model are there when it is planned with "
         "--schedule forward-only",
         options_.outputs, options_.directory);
  }

  // Of a plan that was made without them, or edited since.
  void makePrograms() const {
    SignalWatch signals;  // a half-written folder is removed before the command ends
    Progress progress;
    refreshEdited(options_.directory, [&](const std::string& phase) {
      if (const int signal = signals.take(); signal != 0) {
        throw JobInterrupted(signal, options_.checkpoint.directory.empty()
                                         ? std::nullopt
                                         : std::optional(newestCheckpoint(options_.checkpoint.directory)));
      }
      progress.phase(phase);
    });
  }

  const RunOptions& options_;
  std::optional<SignalWatch>& signals_;
  std::unique_ptr<NodePool>& nodes_;
  JobSpec job_;  // of the options, and step by step of the plan and the data
  TraceOptions trace_;
};

// What lives until the command has ended.
struct RunCommand {
  RunOptions options;
  std::optional<SignalWatch> signals;
  std::unique_ptr<NodePool> nodes;  // while it listens
};

}  // namespace

CommandFunction addRunCommand(CLI::App& app) {
  auto command = std::make_shared<RunCommand>();
  CLI::App* sub = app.add_subcommand("run", "Train a planned model for some steps");
  addRunOptions(*sub, command->options);
  return [command, sub] {
    RunSession session(command->options, command->signals, command->nodes);
    return runWithNodes(
        command->options.listen, command->signals, command->nodes, [&] { return session.run(*sub); },
        reportError);
  };
}

}  // namespace pipeshard
