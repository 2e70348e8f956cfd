#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "runtime/child_process.h"
#include "runtime/job.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/planning.h"
#include "tools/report_files.h"
#include "tools/sharding_tables.h"

namespace pipeshard {
namespace {

constexpr size_t kMostCombinations = 100;  // that are shown

struct PlanCommand {
  PlanRequest request;
  std::string output;
  std::string json;

  int run() const {
    PlannedTraining planned;
    {
      SignalWatch signals;  // a half-written folder is removed before the command ends
      Progress progress;
      const auto show = [&](const std::string& phase) {
        if (const int signal = signals.take(); signal != 0) throw JobInterrupted(signal);
        progress.phase(phase);
      };
      planned = planTraining(request, show);
      show("writing " + output);
      writePlanDirectory(planned, output);
      writeReport(output);
    }
    for (const StageCombinations& stage : planned.combinations) fmt::print("{}\n", combinationTable(stage, kMostCombinations));
    fmt::print("{}", printPlan(planned.plan));
    fmt::print("written to {} (report.html shows it); `pipeshard validate {}` runs it\n", output, output);
    if (!json.empty()) writeOutputFile(json, planToJson(planned.plan));
    return 0;
  }
};

}  // namespace

CommandFunction addPlanCommand(CLI::App& app) {
  auto command = std::make_shared<PlanCommand>();
  CLI::App* sub = app.add_subcommand("plan", "Partition a model's training step over a cluster and write a plan directory");
  sub->add_option("MODEL", command->request.model_path, "The .onnx file")->required();
  addPlanOptions(*sub, command->request);
  sub->add_option("--data", command->request.data_path, "The .npz file to be trained on: its length decides about a shorter last batch")
      ->type_name("FILE");
  sub->add_flag("--allow-missing-weights", command->request.allow_missing_weights, "Plan although the files of external data do not exist");
  sub->add_option("-o,--output", command->output, "The plan directory to write (an older plan there is replaced)")
      ->required()
      ->type_name("DIR");
  sub->add_option("--json", command->json, "Also write the plan to this file")->type_name("FILE");
  sub->footer(std::string(stageFileHelp()) +
              "\nExamples: pipeshard plan examples/gpt2.onnx --cluster 1x4 --stages uniform:2 -o gpt2.plan\n"
              "          pipeshard plan examples/gpt2.onnx --cluster 1x4 --balance 'type:block' -o gpt2.plan");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
