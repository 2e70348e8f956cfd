#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/text_file.h"
#include "planning/advice.h"
#include "planning/directory/plan_directory.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/job/child_process.h"
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
#include "tools/report/text_table.h"
#include "tools/scratch_folder.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlanning = "Planning (when a MODEL is given; a plan directory is already decided)";
constexpr int kFailed = 1;  // exit code: it ran, and something differs

nlohmann::ordered_json toJson(const ValidationReport& report) {
  nlohmann::ordered_json json;
  json["passed"] = report.passed();
  json["ranks"] = report.ranks;
  for (const RankResult& rank : report.planned.ranks) {
    json["memory"].push_back({{"allocated_bytes", rank.arena_bytes + rank.constant_bytes},
                              {"peak_resident_bytes", rank.peak_resident_bytes}});
  }
  for (const StepComparison& step : report.steps) {
    json["steps"].push_back({{"loss", step.loss}, {"reference_loss", step.reference_loss}});
    if (step.update >= 0) json["steps"].back().update({{"step", step.step}, {"update", step.update}});
  }
  for (const TensorComparison& tensor : report.tensors) {
    nlohmann::ordered_json entry = {{"kind", comparedKindName(tensor.kind)},
                                    {"name", tensor.name},
                                    {"step", tensor.step},
                                    {"error", tensor.error},
                                    {"largest_difference", tensor.largest_difference},
                                    {"passed", tensor.passed()}};
    if (!tensor.state.empty()) entry["state"] = tensor.state;
    if (tensor.update >= 0) entry["update"] = tensor.update;
    if (tensor.microbatch >= 0) entry["microbatch"] = tensor.microbatch;
    if (std::isfinite(tensor.bound)) entry["bound"] = tensor.bound;
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

std::string boundText(double bound) {
  return std::isfinite(bound) ? fmt::format("{:.0e}", bound) : "(not decisive)";
}

// "2", or of an update in a window "2, update 3" (numbers from 1 on).
std::string stepText(int step, int update) {
  return update < 0 ? std::to_string(step) : fmt::format("{}, update {}", step, update + 1);
}

// For each kind the worst tensor, and every tensor that failed, up to `most` of them.
std::string worstTable(const ValidationReport& report, size_t most) {
  std::vector<std::vector<std::string>> rows = {
      {"compared", "tensors", "worst error", "bound", "verdict", "largest |difference|", "worst tensor"}};
  for (ComparedKind kind :
       {ComparedKind::kLoss, ComparedKind::kGradient, ComparedKind::kParameter, ComparedKind::kOptimizerState,
        ComparedKind::kForwardState, ComparedKind::kOutput, ComparedKind::kMeasure,
        ComparedKind::kUpdatedParameter, ComparedKind::kUpdatedState, ComparedKind::kImportedGradient}) {
    const TensorComparison* worst = nullptr;
    size_t count = 0;
    double largest_difference = 0;
    for (const TensorComparison& tensor : report.tensors) {
      if (tensor.kind != kind) continue;
      ++count;
      largest_difference = std::max(largest_difference, tensor.largest_difference);
      if (worst == nullptr || tensor.error > worst->error) worst = &tensor;
    }
    if (worst == nullptr) continue;
    rows.push_back({std::string(comparedKindName(kind)), std::to_string(count),
                    fmt::format("{:.2e}", worst->error), boundText(worst->bound),
                    !std::isfinite(worst->bound) ? "-"
                    : worst->passed()            ? "ok"
                                                 : "DIFFERS",
                    fmt::format("{:.2e}", largest_difference),
                    fmt::format("{}{} step {}", worst->name, worst->state.empty() ? "" : " " + worst->state,
                                stepText(worst->step, worst->update))});
  }
  std::string text = formatTable(rows);
  size_t failed = 0;
  for (const TensorComparison& tensor : report.tensors) {
    if (tensor.passed()) continue;
    if (failed++ < most) {
      text += fmt::format(
          "DIFFERS: {} {}{} in step {}: error {:.2e}, bound {:.0e}, largest difference {:.2e}\n",
          comparedKindName(tensor.kind), tensor.name, tensor.state.empty() ? "" : " " + tensor.state,
          stepText(tensor.step, tensor.update), tensor.error, tensor.bound, tensor.largest_difference);
    }
  }
  if (failed > most) text += fmt::format("... and {} more (--json lists all)\n", failed - most);
  return text;
}

struct ValidateCommand {
  const CLI::App* command = nullptr;
  PlanOptions options;
  std::string output;
  std::string json;
  std::string dump;
  JobSpec job;
  ListenOptions listen;
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
    if (!json.empty()) requireWritable(json);
    SignalWatch signals;  // from here on, so that no signal can leave the scratch folder behind
    Progress progress;
    const auto show = [&](const std::string& phase) {
      if (const int signal = signals.take(); signal != 0) throw JobInterrupted(signal);
      progress.phase(phase);
    };
    // Nodes read the plan and write what is compared: hosts share the folder that people work in more often
    // than /tmp.
    const ScratchFolder scratch(listen.listen.empty() ? fs::temp_directory_path() : fs::current_path());
    const std::string plan_directory = preparePlan(scratch.path(), signals, progress);
    const Plan plan = readPlanDirectory(plan_directory);
    const std::string work = dump.empty() ? (scratch.path() / "dump").string() : fs::absolute(dump).string();
    job.signals = &signals;
    progress.clear();
    ValidateSpec spec = makeSpec(plan, plan_directory, work);
    // with nodes the data may be where the workers are, and not here
    if (listen.listen.empty() || fs::exists(spec.planned.data.path)) {
      const DataSummary data = summarizeData(spec.planned);
      if (!data.text.empty()) fmt::print("data: {}\n", data.text);
      const std::string lengths = lengthsOfSteps(spec.planned, plan);
      if (!lengths.empty()) fmt::print("{}\n", lengths);
    }
    const std::unique_ptr<NodePool> nodes = listenForNodes(listen, plan.cluster, spec.planned);
    if (!nodes) noteCrowding(countRanks(plan_directory));
    trace.apply(spec.planned, true);
    TraceWriter writer(trace);
    const ValidationReport report = validate(spec, show);
    progress.clear();
    printTables(plan, report);
    writer.finish();
    if (!json.empty()) writeTextFile(json, toJson(report).dump(1) + "\n");
    keepValidation(report, trace.trace, plan_directory);
    printVerdict(plan, report);  // last: what follows it cannot fail any more
    writeReport(plan_directory);
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
    spec.reference = spec.planned;
    spec.reference.device = {};  // the CPU is the reference
    spec.planned.plan_directory = plan_directory;
    spec.reference.plan_directory = plan_directory + "/reference";
    const fs::path imported = fs::path(plan_directory) / kImportedFolder;
    if (fs::exists(imported)) spec.imported = imported.string();
    return spec;
  }

  void printTables(const Plan& plan, const ValidationReport& report) const {
    if (!trains.empty()) fmt::print("{}\n", trains);
    fmt::print("{}\n", printPlan(plan));
    std::vector<std::vector<std::string>> rows = {{"step", "loss", "loss on one device", "difference"}};
    for (const StepComparison& step : report.steps) {
      rows.push_back({stepText(step.step, step.update), fmt::format("{:.9g}", step.loss),
                      fmt::format("{:.9g}", step.reference_loss),
                      fmt::format("{:.1e}", std::abs(step.loss - step.reference_loss))});
    }
    for (const RankId rank : report.planned.ranks.ids()) {
      const std::string& device = report.planned.ranks[rank].device;
      if (!device.empty()) fmt::print("rank {} computes on {}\n", rank, device);
    }
    if (!report.planned.transport.empty()) fmt::print("{}\n", report.planned.transport);
    if (!report.steps.empty()) fmt::print("{}\n", formatTable(rows));
    fmt::print("{}\n", worstTable(report, 20));
  }

  static void printVerdict(const Plan& plan, const ValidationReport& report) {
    const bool is_mixed = plan.given.precision == DataType::kBfloat16;
    fmt::print("{}: {} on {} worker{} {} one device{}\n", report.passed() ? "PASS" : "FAIL",
               fs::path(plan.model_path).filename().string(), report.ranks, report.ranks == 1 ? "" : "s",
               report.passed() ? "equals" : "differs from",
               is_mixed ? ", in bfloat16, by the bounds above" : "");
    if (plan.given.precision != DataType::kFloat64 && !report.passed()) {
      fmt::print(
          "Devices that share rows or operators round their sums apart, and a Relu near zero makes more of "
          "it:\n--precision float64 tells whether the cut is right (docs/precision.md)\n");
    }
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
  sub->add_option("--dump", command->dump, "Keep the compared tensors here, as safetensors")
      ->type_name("DIR");
  sub->add_option("--json", command->json, "Also write the result to this file")->type_name("FILE");
  sub->footer(std::string(stageFileHelp()) +
              "\nExit code 0: every tensor is within its bound; 1: some differ.\n"
              "Example: pipeshard validate examples/gpt2.onnx --cluster 1x4 --schedule 1f1b --microbatches 8 "
              "--optimizer adamw:lr=1e-3 --steps 3");
  command->command = sub;
  return [command] { return command->run(); };
}

}  // namespace pipeshard
