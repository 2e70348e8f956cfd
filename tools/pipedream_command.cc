// `pipedream`: plans as PipeDream does, from one of its profiles.
#include <fstream>
#include <memory>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/error.h"
#include "partition/pipedream.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/model_options.h"
#include "tools/option_checks.h"
#include "tools/sharding_tables.h"

namespace pipeshard {
namespace {

constexpr int64_t kMostOptions = 10'000'000;  // kept for all runs of layers and numbers of workers

std::string readText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) fail(ErrorCode::kMissingInput, "{} cannot be read", path);
  return text.str();
}

struct PipeDreamCommand {
  std::string path;
  std::string bandwidth = "12GB";
  std::string json;
  int workers = 4;

  int run() const {
    const int64_t bytes_per_second = parseBytes("--bandwidth", bandwidth);
    const PipeDreamProfile profile = parsePipeDreamProfile(readText(path), path);
    const auto layers = static_cast<int64_t>(profile.layers.size());
    if (layers * layers > kMostOptions / workers) {
      fail(ErrorCode::kUsage, "{} layers on {} workers are too many; expected layers^2 * workers up to {}", layers, workers, kMostOptions);
    }
    const PipeDreamPlan plan = planAsPipeDream(profile, workers, static_cast<double>(bytes_per_second) / 1e9);
    print(profile, plan);
    if (!json.empty()) writeOutputFile(json, toJson(profile, plan).dump(1) + "\n");
    return 0;
  }

 private:
  static double speedup(const PipeDreamPlan& plan, int64_t ns) {
    return ns == 0 ? 1 : static_cast<double>(plan.one_worker_ns) / static_cast<double>(ns);
  }

  void print(const PipeDreamProfile& profile, const PipeDreamPlan& plan) const {
    fmt::print("{}: {} layers, {} for a minibatch on one worker; {} workers at {} a second\n\n", path, profile.layers.size(),
               formatNanoseconds(plan.one_worker_ns), workers, bandwidth);
    std::vector<std::vector<std::string>> rows = {{"stage", "layers", "from", "to", "workers", "pass", "weights", "sends", "versions"}};
    for (size_t s = 0; s < plan.assignment.stages.size(); ++s) {
      const AssignedStage& stage = plan.assignment.stages[s];
      rows.push_back({fmt::format("{}", s), fmt::format("{}-{}", stage.first_layer, stage.last_layer),
                      profile.layers[static_cast<size_t>(stage.first_layer)].name,
                      profile.layers[static_cast<size_t>(stage.last_layer)].name, fmt::format("{}", stage.submesh.deviceCount()),
                      formatNanoseconds(stage.option.pass_ns), formatNanoseconds(stage.option.step_ns),
                      formatNanoseconds(stage.transfer_ns), fmt::format("{}", plan.versions[s])});
    }
    fmt::print("{}\n", formatTable(rows));
    fmt::print("a minibatch every {}: {:.3f}x one worker; data parallelism {:.3f}x, of which this is {:.3f}x\n",
               formatNanoseconds(plan.assignment.objective_ns), speedup(plan, plan.assignment.objective_ns),
               speedup(plan, plan.data_parallel_ns), speedup(plan, plan.assignment.objective_ns) / speedup(plan, plan.data_parallel_ns));
  }

  nlohmann::ordered_json toJson(const PipeDreamProfile& profile, const PipeDreamPlan& plan) const {
    nlohmann::ordered_json report;
    report["workers"] = workers;
    report["one_worker_ns"] = plan.one_worker_ns;
    report["data_parallel_ns"] = plan.data_parallel_ns;
    report["minibatch_ns"] = plan.assignment.objective_ns;
    report["stages"] = nlohmann::ordered_json::array();
    for (size_t s = 0; s < plan.assignment.stages.size(); ++s) {
      const AssignedStage& stage = plan.assignment.stages[s];
      nlohmann::ordered_json& entry = report["stages"].emplace_back();
      entry["layers"] = {stage.first_layer, stage.last_layer};
      entry["names"] = {profile.layers[static_cast<size_t>(stage.first_layer)].name,
                        profile.layers[static_cast<size_t>(stage.last_layer)].name};
      entry["workers"] = stage.submesh.deviceCount();
      entry["pass_ns"] = stage.option.pass_ns;
      entry["weights_ns"] = stage.option.step_ns;
      entry["transfer_ns"] = stage.transfer_ns;
      entry["versions"] = plan.versions[s];
    }
    return report;
  }
};

}  // namespace

CommandFunction addPipeDreamCommand(CLI::App& app) {
  auto command = std::make_shared<PipeDreamCommand>();
  CLI::App* sub = app.add_subcommand(
      "pipedream", "Plan as PipeDream's optimizer does, from one of its profiles: replicated stages for asynchronous training");
  sub->add_option("profile", command->path, "The text that PipeDream's profiler wrote, e.g. examples/pipedream/vgg16_profile.txt")
      ->required()
      ->type_name("FILE");
  sub->add_option("--workers", command->workers, "All of them are used")->check(positiveWhole(1024))->capture_default_str();
  sub->add_option("--bandwidth", command->bandwidth, "Between any two workers, per second")->type_name("BYTES")->capture_default_str();
  sub->add_option("--json", command->json, "Also write the plan to this file")->type_name("FILE");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
