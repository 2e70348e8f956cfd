#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "tools/commands.h"
#include "tools/console.h"
#include "tools/planning.h"
#include "tools/report.h"

namespace pipeshard {
namespace {

struct PlanCommand {
  PlanRequest request;
  std::string output;
  std::string json;

  int run() const {
    PlannedTraining planned;
    {
      Progress progress;
      planned = planTraining(request, [&](const std::string& phase) { progress.phase(phase); });
      progress.phase("writing " + output);
      writePlanDirectory(planned, output);
      writeOutputFile(output + "/report.html", renderReport({planned.plan}));
    }
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
  sub->add_option("-o,--output", command->output, "The plan directory to write (an older plan there is replaced)")->required()->type_name("DIR");
  sub->add_option("--json", command->json, "Also write the plan to this file")->type_name("FILE");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
