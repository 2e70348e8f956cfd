#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/text_file.h"
#include "planning/advice.h"
#include "planning/directory/plan_directory.h"
#include "planning/programs/step_programs.h"
#include "runtime/disks/dump_folder.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/identity/plan_mark.h"
#include "runtime/job/child_process.h"
#include "runtime/machine/limits.h"
#include "runtime/validation/validate.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options/job_options.h"
#include "tools/options/node_options.h"
#include "tools/options/option_checks.h"
#include "tools/options/plan_options.h"
#include "tools/options/trace_options.h"
#include "tools/planning_signals.h"
#include "tools/refresh.h"
#include "tools/report/report_files.h"
#include "tools/scratch_folder.h"
#include "tools/validation/float64_check.h"
#include "tools/validation/validation_text.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlanning = "Planning (when a MODEL is given; a plan directory is already decided)";
constexpr int kFailed = 1;  // exit code: it ran, and something differs

struct ValidateCommand {
  const CLI::App* command = nullptr;
  PlanOptions options;
  std::string output;
  std::string json;
  std::string dump;
  JobSpec job;
  ListenOptions listen;
  std::optional<SignalWatch> signals;
  std::unique_ptr<NodePool> nodes;  // while it listens
  double bound = 0;
  TraceOptions trace;
  std::string trains;  // what was planned, if anything was

  int run() {
    if (boundGiven() && !(bound > 0 && std::isfinite(bound)))
      fail(ErrorCode::kUsage, "--bound {}: expected a positive number", bound);
    if (job.data.path == kStandardInput) {
      fail(ErrorCode::kUsage,
           "--data -: two jobs read the data, and standard input cannot be read again; give --data-command");
    }
    refuseJobOptionsInVain(*command, job);
    refuseListenOptionsInVain(*command, listen);
    if (!json.empty()) requireWritable(json);
    requireLimits({});  // before planning takes what is there
    signals.emplace();  // from here on, so that no signal can leave the scratch folder or the keys behind
    Progress progress;
    const auto show = [&](const std::string& phase) {
      if (const int signal = signals->take(); signal != 0) throw JobInterrupted(signal);
      progress.phase(phase);
    };
    const ScratchFolder scratch(!listen.listen.empty());  // nodes read the plan, and write what is compared
    const std::string plan_directory = preparePlan(scratch.path(), *signals, progress);
    const std::string mark = planMark(plan_directory);
    const Plan plan = readPlanDirectory(plan_directory);
    const std::string work = dump.empty() ? (scratch.path() / "dump").string() : fs::absolute(dump).string();
    FolderLock dumps;  // over all jobs, and until all is compared
    if (!dump.empty()) dumps = lockDumps(work);
    job.signals = &*signals;
    progress.clear();
    const std::string not_kept = whyNothingIsKept(plan_directory);
    if (!not_kept.empty()) fmt::print("note: the plan will not have what is found: {}\n", not_kept);
    ValidateSpec spec = makeSpec(plan, plan_directory, work);
    // with nodes the data may be where the workers are, and not here
    if (listen.listen.empty() || fs::exists(spec.planned.data.path)) {
      const DataSummary data = summarizeData(spec.planned);
      if (!data.text.empty()) fmt::print("data: {}\n", data.text);
      const std::string lengths = lengthsOfSteps(spec.planned, plan);
      if (!lengths.empty()) fmt::print("{}\n", lengths);
    }
    nodes = listenForNodes(listen, plan.cluster, spec.planned);
    if (!nodes) noteCrowding(countRanks(plan_directory));
    trace.apply(spec.planned, true);
    trace.requireSpace(spec.planned);
    TraceWriter writer(trace);
    ValidationReport report = validate(spec, show);
    const std::string otherwise = tellRounding(plan, plan_directory, spec, scratch.path(), report, show);
    requireSamePlan(plan_directory, mark, "");  // nor is what was found written into another one
    progress.clear();
    printTables(plan, report);
    writer.finish();
    if (!json.empty()) writeTextFile(json, validationJson(report));
    refuseNotANumber(report);
    if (not_kept.empty())
      keepValidation(report, trace.trace, plan_directory);
    else
      fmt::print("not written to the plan, as was said at the beginning (--json FILE writes the result)\n");
    fmt::print("{}", validationVerdict(plan, report, otherwise));  // last: what follows cannot fail any more
    if (not_kept.empty()) writeReport(plan_directory);
    return report.passed() ? 0 : kFailed;
  }

 private:
  bool boundGiven() const { return command->get_option("--bound")->count() > 0; }

  // The plan directory to run: the given one, or one that is planned now (kept with -o).
  std::string preparePlan(const fs::path& scratch, SignalWatch& watch, Progress& progress) {
    PlanningSignals signals(watch);
    const auto show = [&](const std::string& phase) {
      signals.check();
      progress.phase(phase);
    };
    const std::string& model = options.request.model_path;
    if (fs::is_directory(model) && !model.ends_with(".onnx")) {
      requirePlanDirectory(model);
      refusePlanningOptions();
      refreshEdited(model, show);
      signals.finish();
      return fs::absolute(model).string();
    }
    std::string directory =
        output.empty() ? (scratch / "validate.plan").string() : fs::absolute(output).string();
    PlanRequest asked = planRequest(options);
    if (!isPipe(job.data)) asked.data = job.data;  // a pipe has no length
    PlannedTraining planned = planOrAdvise(asked, show, &signals.interruption());
    trains = planned.trains;
    writePlanDirectory(std::move(planned), directory);
    signals.finish();
    return directory;
  }

  void refusePlanningOptions() const {
    for (const CLI::Option* option : command->get_options()) {
      const bool given =
          option->count() > 0 && (option->get_group() == kPlanning || option->get_name() == "--output");
      if (!given) continue;
      fail(ErrorCode::kUsage,
           "{} is a plan directory, in which everything is decided; {} goes with a MODEL, or with `pipeshard "
           "plan`",
           options.request.model_path, option->get_name());
    }
  }

  ValidateSpec makeSpec(const Plan& plan, const std::string& plan_directory, const std::string& work) const {
    ValidateSpec spec;
    setPromisedBounds(plan.given.precision, spec);
    if (boundGiven()) spec.bound = spec.imported_bound = bound;
    spec.adaptive = isAdaptive(plan.given.optimizer);
    spec.same_start = std::any_of(plan.stages.begin(), plan.stages.end(), [](const StagePlan& stage) {
      return stage.mesh_shape.at(0) > 1 || stage.sharding.has_value();
    });
    spec.work_directory = work;
    spec.planned = job;
    spec.planned.data.end.whole_only = whyWholeBatchesOnly(plan);
    spec.planned.data.end.parts = stepMakeup(plan);
    const bool synthetic = job.data.path.empty() && job.data.command.empty();
    if (synthetic && !plan.shorter_lengths.empty() && command->get_option("--steps")->count() == 0)
      spec.planned.steps = std::ssize(ProgramFolder(plan_directory).sizes());
    if (!job.data.path.empty()) spec.planned.data.path = fs::absolute(job.data.path).string();
    // Both sides use as many threads per worker: the same kernels in the same blocks.
    if (job.threads_per_worker == 0) {
      size_t workers = 0;
      for (const StagePlan& stage : plan.stages) workers += stage.devices.size();
      spec.planned.threads_per_worker = threadsPerWorker(0, workers);
    }
    if (plan.given.precision == DataType::kFloat16) spec.planned.check_finite = false;  // left out, on both
    spec.reference = spec.planned;
    spec.reference.device = {};  // the CPU is the reference
    spec.planned.plan_directory = plan_directory;
    spec.reference.plan_directory = plan_directory + "/reference";
    const fs::path imported = fs::path(plan_directory) / kImportedFolder;
    if (fs::exists(imported)) spec.imported = imported.string();
    return spec;
  }

  // Whether what is beyond its bounds is rounding; why that was not asked ("": it was).
  std::string tellRounding(const Plan& plan, const std::string& plan_directory, ValidateSpec spec,
                           const fs::path& scratch, ValidationReport& report,
                           const std::function<void(const std::string&)>& progress) const {
    if (plan.given.precision == DataType::kFloat64 || boundGiven()) return "";
    if (!listen.listen.empty()) return report.passed() ? "" : "that is done on one machine";
    spec.planned.trace = nullptr;
    return checkInFloat64({plan, plan_directory, std::move(spec), scratch.string()}, report, progress);
  }

  void printTables(const Plan& plan, const ValidationReport& report) const {
    if (!trains.empty()) fmt::print("{}\n", trains);
    fmt::print("{}\n", printPlan(plan));
    for (const RankId rank : report.planned.ranks.ids()) {
      const std::string& device = report.planned.ranks[rank].device;
      if (!device.empty()) fmt::print("rank {} computes on {}\n", rank, device);
    }
    if (!report.planned.transport.empty()) fmt::print("{}\n", report.planned.transport);
    fmt::print("{}", validationTables(report));
  }
};

}  // namespace

CommandFunction addValidateCommand(CLI::App& app) {
  auto command = std::make_shared<ValidateCommand>();
  CLI::App* sub = app.add_subcommand(
      "validate",
      "Run a step or more on one device and on all, and compare loss, gradients, parameters and states");
  sub->add_option("MODEL|DIR", command->options.request.model_path,
                  "An .onnx file (planned first, with the options below) or a plan directory")
      ->required();
  sub->option_defaults()->group(kPlanning);
  addPlanOptions(*sub, command->options);
  sub->option_defaults()->group("Options");
  sub->add_option("--steps", command->job.steps,
                  "How many training steps; of a plan for sequences of several lengths, and synthetic data,\n"
                  "as many as show all of them where it is not given")
      ->check(positiveWhole())
      ->capture_default_str();
  addJobOptions(*sub, command->job);
  addListenOptions(*sub, command->listen);
  command->trace.add(*sub);
  sub->add_option("--bound", command->bound,
                  "Largest error of loss, gradients and (SGD) parameters\n(default: 1e-5 for float32, 1e-11 "
                  "for float64)");
  sub->add_option("-o,--output", command->output, "Keep the plan directory, with the report, here")
      ->type_name("DIR");
  sub->add_option("--dump", command->dump,
                  "Keep the compared tensors here, as safetensors (with --listen:\n"
                  "in a folder that all hosts share)")
      ->type_name("DIR");
  sub->add_option("--json", command->json, "Also write the result to this file")->type_name("FILE");
  sub->footer(
      std::string(stageFileHelp()) +
      "\nExit code 0: every tensor is within its bound, or only float32's rounding is beyond it, which is\n"
      "told by the same plan in float64 (not with --bound, nor with nodes); 1: some differ; 82: they are no\n"
      "numbers (NaN) on one device either.\n"
      "Example: pipeshard validate examples/gpt2.onnx --cluster 1x4 --schedule 1f1b --microbatches 8 "
      "--optimizer adamw:lr=1e-3 --steps 3");
  command->command = sub;
  return [command] {
    return runWithNodes(
        command->listen, command->signals, command->nodes, [&] { return command->run(); }, reportError);
  };
}

}  // namespace pipeshard
