#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "ir/plan/plan_json.h"
#include "planning/advice.h"
#include "planning/directory/copied_weights.h"
#include "planning/directory/plan_check.h"
#include "planning/directory/plan_directory.h"
#include "planning/directory/program_files.h"
#include "planning/programs/memory_shortage.h"
#include "runtime/job/child_process.h"
#include "runtime/job/job.h"
#include "runtime/machine/limits.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options/data_options.h"
#include "tools/options/plan_options.h"
#include "tools/planning_signals.h"
#include "tools/report/plan_diff.h"
#include "tools/report/report_files.h"
#include "tools/report/search_tables.h"
#include "tools/report/sharding_tables.h"

namespace pipeshard {
namespace {

constexpr size_t kMostCombinations = 100;  // that are shown

constexpr size_t kMostDifferences = 20;        // of each part
constexpr int kDifferent = 1;                  // exit code
constexpr std::chrono::seconds kPatience{10};  // with another process that writes the same folder
// What the smallest plan takes on a disk, so any; bytes.
constexpr uint64_t kLeastPlan = uint64_t{64} << 10;
constexpr uint64_t kLeastPlanWithoutPrograms = uint64_t{16} << 10;

struct PlanCommand {
  const CLI::App* command = nullptr;
  PlanOptions options;
  std::string output;
  std::string json;
  std::vector<std::string> compared;
  std::string checked;
  std::optional<int> expanded;
  Dialect dialect = Dialect::kPipeshard;

  int run() const {
    if (!compared.empty()) return compare();
    if (!checked.empty()) return check();
    if (expanded) return expand();
    if (options.request.model_path.empty())
      fail(ErrorCode::kUsage, "MODEL is required: the .onnx file to plan");
    if (output.empty()) fail(ErrorCode::kUsage, "-o DIR is required: the plan directory to write");
    return makePlan();
  }

  int makePlan() const {
    requireSpace(output, options.request.programs ? kLeastPlan : kLeastPlanWithoutPrograms, "a plan");
    PlannedTraining made;  // without programs, once they are written
    size_t ranks = 0;
    {
      SignalWatch watch;  // a half-written folder is removed before the command ends
      PlanningSignals signals(watch);
      Progress progress;
      const auto show = [&](const std::string& phase) {
        signals.check();
        progress.phase(phase);
      };
      PlannedTraining planned = planOrAdvise(planRequest(options), show, &signals.interruption());
      made.plan = planned.plan;
      made.trains = planned.trains;
      made.combinations = planned.combinations;
      ranks = planned.whole.ranks.size();
      show("writing " + output);
      const auto writing = [&](const std::string& what) {
        show(fmt::format("writing {}: {}", output, what));
      };
      writePlanDirectory(
          std::move(planned), output,
          [&](const std::string& folder, const ProgramSet& programs) {
            writing("the report");
            writeReport(folder, &programs);
          },
          kPatience, writing);
    }
    fmt::print("{}\n", made.trains);
    for (const StageCombinations& stage : made.combinations)
      fmt::print("{}\n", combinationTable(stage, kMostCombinations));
    fmt::print("{}{}", printPlan(made.plan), searchTables(made.plan, false));
    fmt::print("written to {} (report.html shows it); `pipeshard validate {}` {}runs it\n", output, output,
               options.request.programs ? "" : "makes the ranks' programs and ");
    if (!options.request.programs && limitsMemory(made.plan)) {
      fmt::print(
          "note: what devices allocate is compared with what they have when the programs are made, at the "
          "first run\n");
    }
    if (options.request.copy_weights)
      fmt::print("weights of {} ranks copied: {}\n", ranks, formatBytes(copiedWeightBytes(output)));
    if (!json.empty()) writeTextFile(json, planToJson(made.plan));
    return 0;
  }

  int compare() const {
    refuseOthers("--diff");
    const std::vector<PlanDifference> differences =
        diffPlans(readPlanFile(compared[0]), readPlanFile(compared[1]));
    if (differences.empty()) fmt::print("{} and {} are equal plans\n", compared[0], compared[1]);
    if (!differences.empty())
      fmt::print("first: {}, second: {}\n\n{}", compared[0], compared[1],
                 printDifferences(differences, kMostDifferences));
    if (!json.empty()) writeTextFile(json, differencesToJson(differences));
    return differences.empty() ? 0 : kDifferent;
  }

  int check() const {
    refuseOthers("--check");
    PlanCheck result;
    {
      Progress progress;
      result = checkPlan(checked, [&](const std::string& phase) { progress.phase(phase); });
    }
    for (const std::string& fault : result.faults) fmt::print("{}\n", fault);
    for (const std::string& note : result.notes) fmt::print("note: {}\n", note);
    if (result.edited && result.faults.empty()) {
      fmt::print(
          "note: plan.json was edited since the programs were made; `pipeshard validate {}` and `run` make "
          "them again\n",
          checked);
    }
    fmt::print(
        "{}: {}\n", checked,
        result.faults.empty() ? "the plan holds" : counted(std::ssize(result.faults), "rule") + " violated");
    if (!json.empty()) {
      nlohmann::ordered_json document;
      document["faults"] = result.faults;
      document["notes"] = result.notes;
      document["edited"] = result.edited;
      writeTextFile(json, document.dump(1) + "\n");
    }
    return result.faults.empty() ? 0 : static_cast<int>(ErrorCode::kConfiguration);
  }

  // MODEL is a plan directory here.
  int expand() const {
    for (const CLI::Option* option : command->get_options()) {
      const std::string& name = option->get_name();
      if (option->count() > 0 && name != "MODEL" && name != "--expand-rank" && name != "--dialect" &&
          name != "--output")
        fail(ErrorCode::kUsage, "--expand-rank looks at a plan that is there; {} goes with a MODEL to plan",
             name);
    }
    if (options.request.model_path.empty() || output.empty())
      fail(ErrorCode::kUsage,
           "--expand-rank needs a plan directory in the place of MODEL, and -o DIR to write");
    const DialectChanges changes = expandRank(options.request.model_path, RankId(*expanded), output, dialect);
    fmt::print("rank {} of {} written to {}\n", *expanded, options.request.model_path, output);
    if (dialect == Dialect::kOrt) fmt::print("{}\n", describeChanges(changes));
    return 0;
  }

  // Nothing is planned, so nothing else can be asked for.
  void refuseOthers(const std::string& given) const {
    for (const CLI::Option* option : command->get_options()) {
      if (option->count() == 0 || option->get_name() == given || option->get_name() == "--json") continue;
      fail(ErrorCode::kUsage, "{} looks at plans that are there; {} goes with a MODEL to plan", given,
           option->get_name());
    }
  }
};

}  // namespace

CommandFunction addPlanCommand(CLI::App& app) {
  auto command = std::make_shared<PlanCommand>();
  CLI::App* sub = app.add_subcommand(
      "plan", "Partition a model's training step over a cluster and write a plan directory");
  sub->add_option("MODEL", command->options.request.model_path, "The .onnx file");
  addPlanOptions(*sub, command->options);
  addDataOptions(*sub, command->options.request.data);
  sub->add_flag("--allow-missing-weights", command->options.request.allow_missing_weights,
                "Plan although the files of external data do not exist");
  sub->add_flag("--copy-weights", command->options.request.copy_weights,
                "Copy every rank's parts of the weights into the plan directory (weights/RANK.safetensors), "
                "so that `run` needs the model no more; `validate` and `export` still do")
      ->excludes("--allow-missing-weights");
  sub->add_option("-o,--output", command->output,
                  "The plan directory to write (an older plan there is replaced)")
      ->type_name("DIR");
  sub->add_flag(
         "!--no-programs", command->options.request.programs,
         "Write the plan alone; the ranks' programs are made when it is first run. For large clusters "
         "and many microbatches, whose programs take gigabytes. What devices allocate is then compared "
         "with --memory when programs are made, and while planning only what the solver foresees")
      ->excludes("--copy-weights");
  sub->add_option("--diff", command->compared,
                  "Instead of planning: what two plans (directories or plan.json files) decide differently")
      ->expected(2)
      ->type_name("A B");
  sub->add_option("--check", command->checked,
                  "Instead of planning: whether a plan (a directory or a plan.json) holds, and every rule "
                  "that it violates")
      ->type_name("DIR");
  CLI::Option* expand =
      sub->add_option(
             "--expand-rank", command->expanded,
             "Instead of planning: write one rank's program of the plan directory that is given as MODEL "
             "to -o DIR, with its subgraphs as .onnx files under their names")
          ->check(CLI::NonNegativeNumber)
          ->type_name("N");
  sub->add_option(
         "--dialect", command->dialect,
         "With --expand-rank: whose collectives the .onnx files have, pipeshard's, or ONNX Runtime's "
         "(com.microsoft) where those mean the same")
      ->needs(expand)
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, Dialect>{{"pipeshard", Dialect::kPipeshard}, {"ort", Dialect::kOrt}}))
      ->type_name("pipeshard|ort");

  sub->add_option("--json", command->json, "Also write the plan (or the differences) to this file")
      ->type_name("FILE");
  sub->footer(
      std::string(stageFileHelp()) +
      "\nExamples: pipeshard plan examples/gpt2.onnx --cluster 1x4 --stages uniform:2 -o gpt2.plan\n"
      "          pipeshard plan examples/gpt2.onnx --cluster 1x4 --balance 'type:block' -o gpt2.plan\n"
      "          pipeshard plan --diff gpt2.plan other.plan       (exit code 0: equal; 1: they differ)\n"
      "          pipeshard plan --check gpt2.plan                 (after plan.json was edited; exit code 0: "
      "it holds)\n"
      "          pipeshard plan gpt2.plan --expand-rank 3 -o rank3   (program.json, forward.onnx, ...)");
  command->command = sub;
  return [command] { return command->run(); };
}

}  // namespace pipeshard
