// `pipedream`: plans as PipeDream does, from one of its profiles.
#include <cmath>
#include <memory>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "ir/base/text_file.h"
#include "partition/pipedream/pipedream.h"
#include "tools/commands.h"
#include "tools/options/cluster_option.h"
#include "tools/options/option_checks.h"
#include "tools/options/plan_options.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

constexpr int64_t kMostWorkers = 1024;

struct PipeDreamCommand {
  std::string path;
  std::string cluster, memory, json, stage_file;
  std::vector<int> workers = {4};
  std::vector<std::string> bandwidths = {"12GB"};

  int run() const {
    PipeDreamRequest request;
    request.levels = cluster.empty() ? givenLevels() : pipeDreamLevels(readCluster(cluster));
    request.memory_bytes = memory.empty() ? 0 : parseBytes("--memory", memory);
    constexpr uint64_t kMostBytes = 16 << 20;
    const PipeDreamProfile profile =
        parsePipeDreamProfile(requireTextFile(path, kMostBytes, "a profile of PipeDream"), path);
    const PipeDreamPlan plan = planAsPipeDream(profile, request);
    print(request, profile, plan);
    if (!json.empty()) writeTextFile(json, toJson(request, profile, plan).dump(1) + "\n");
    if (!stage_file.empty()) writeTextFile(stage_file, stageFileOf(profile, plan));
    return 0;
  }

 private:
  std::vector<PipeDreamLevel> givenLevels() const {
    if (bandwidths.size() != workers.size()) {
      fail(ErrorCode::kUsage,
           "--workers {}: {} levels, and --bandwidth {}: {}; expected a bandwidth for every level, innermost "
           "first",
           fmt::join(workers, ","), workers.size(), fmt::join(bandwidths, ","), bandwidths.size());
    }
    std::vector<PipeDreamLevel> levels;
    int64_t all = 1;
    for (size_t k = 0; k < workers.size(); ++k) {
      levels.push_back({workers[k], static_cast<double>(parseBytes("--bandwidth", bandwidths[k])) / 1e9});
      all *= workers[k];
      if (all > kMostWorkers)
        fail(ErrorCode::kUsage, "--workers {}: more than {} in all", fmt::join(workers, ","), kMostWorkers);
    }
    return levels;
  }

  static double speedup(const PipeDreamPlan& plan, int64_t ns) {
    return ns == 0 ? 1 : static_cast<double>(plan.one_worker_ns) / static_cast<double>(ns);
  }

  static int64_t workersOf(const PipeDreamStage& stage) {
    int64_t workers = std::ssize(stage.workers);
    for (const PipeDreamStage& inside : stage.inside) workers += workersOf(inside);
    return workers;
  }

  // Stages inside stage 0 are 0.0, 0.1, ... "3 x 4": three components of four workers take turns.
  static void addRows(const PipeDreamProfile& profile, const std::vector<PipeDreamStage>& stages,
                      const std::string& prefix, std::vector<int64_t> sizes,
                      std::vector<std::vector<std::string>>& rows, bool several) {
    const int64_t size = sizes.back();
    sizes.pop_back();
    for (size_t s = 0; s < stages.size(); ++s) {
      const PipeDreamStage& stage = stages[s];
      const std::string name = fmt::format("{}{}", prefix, s);
      std::vector<std::string>& row = rows.emplace_back();
      row = {name, fmt::format("{}-{}", stage.first_layer, stage.last_layer),
             profile.layers[stage.first_layer].name, profile.layers[stage.last_layer].name};
      if (several) row.push_back(fmt::format("{} x {}", stage.components, size));
      row.insert(row.end(), {fmt::format("{}", workersOf(stage)), formatNanoseconds(stage.pass_ns),
                             formatNanoseconds(stage.weights_ns), formatNanoseconds(stage.transfer_ns),
                             stage.inside.empty() ? fmt::format("{}", stage.versions) : ""});
      if (!stage.inside.empty()) addRows(profile, stage.inside, name + ".", sizes, rows, several);
    }
  }

  void print(const PipeDreamRequest& request, const PipeDreamProfile& profile,
             const PipeDreamPlan& plan) const {
    std::vector<std::string> levels;
    std::vector<int64_t> sizes;  // by level, of a component of the one below
    int64_t all = 1;
    for (const PipeDreamLevel& level : request.levels) {
      levels.push_back(fmt::format("{} {} at {:g} GB a second", level.components,
                                   sizes.empty() ? "workers" : fmt::format("groups of {}", all),
                                   level.bytes_per_ns));
      sizes.push_back(all);
      all *= level.components;
    }
    fmt::print("{}: {} layers, {} for a minibatch on one worker; {}\n\n", path, profile.layers.size(),
               formatNanoseconds(plan.one_worker_ns), fmt::join(levels, ", "));
    std::vector<std::string> head = {"stage", "layers",  "from",  "to",      "workers",
                                     "pass",  "weights", "sends", "versions"};
    if (sizes.size() > 1) head.insert(head.begin() + 4, "in turn");
    std::vector<std::vector<std::string>> rows = {head};
    addRows(profile, plan.stages, "", sizes, rows, sizes.size() > 1);
    fmt::print("{}\n", formatTable(rows));
    fmt::print(
        "a minibatch every {}: {:.3f}x one worker; data parallelism {:.3f}x, of which this is {:.3f}x\n",
        formatNanoseconds(plan.minibatch_ns), speedup(plan, plan.minibatch_ns),
        speedup(plan, plan.data_parallel_ns),
        speedup(plan, plan.minibatch_ns) / speedup(plan, plan.data_parallel_ns));
  }

  static nlohmann::ordered_json stagesOf(const PipeDreamProfile& profile,
                                         const std::vector<PipeDreamStage>& stages) {
    nlohmann::ordered_json entries = nlohmann::ordered_json::array();
    for (const PipeDreamStage& stage : stages) {
      nlohmann::ordered_json& entry = entries.emplace_back();
      entry["layers"] = {stage.first_layer, stage.last_layer};
      entry["names"] = {profile.layers[stage.first_layer].name, profile.layers[stage.last_layer].name};
      entry["workers"] = workersOf(stage);
      entry["components"] = stage.components;
      entry["pass_ns"] = stage.pass_ns;
      entry["weights_ns"] = stage.weights_ns;
      entry["transfer_ns"] = stage.transfer_ns;
      if (stage.inside.empty()) {
        entry["devices"] = stage.workers;
        entry["versions"] = stage.versions;
      } else {
        entry["stages"] = stagesOf(profile, stage.inside);
      }
    }
    return entries;
  }

  static nlohmann::ordered_json toJson(const PipeDreamRequest& request, const PipeDreamProfile& profile,
                                       const PipeDreamPlan& plan) {
    nlohmann::ordered_json report;
    report["levels"] = nlohmann::ordered_json::array();
    for (const PipeDreamLevel& level : request.levels)
      report["levels"].push_back(
          {{"components", level.components}, {"bytes_per_second", std::llround(level.bytes_per_ns * 1e9)}});
    if (request.memory_bytes > 0) report["memory_bytes"] = request.memory_bytes;
    report["one_worker_ns"] = plan.one_worker_ns;
    report["data_parallel_ns"] = plan.data_parallel_ns;
    report["minibatch_ns"] = plan.minibatch_ns;
    report["stages"] = stagesOf(profile, plan.stages);
    return report;
  }
};

}  // namespace

CommandFunction addPipeDreamCommand(CLI::App& app) {
  auto command = std::make_shared<PipeDreamCommand>();
  CLI::App* sub = app.add_subcommand("pipedream",
                                     "Plan as PipeDream's optimizer does, from one of its profiles: "
                                     "replicated stages for asynchronous training");
  sub->add_option("profile", command->path,
                  "The text that PipeDream's profiler wrote, e.g. examples/pipedream/vgg16_profile.txt")
      ->required()
      ->type_name("FILE");
  CLI::Option* workers =
      sub->add_option(
             "--workers", command->workers,
             "All of them are used. Of several levels innermost first: 4,2 are 2 groups of 4 workers each")
          ->type_name("N,N,...")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->check(positiveWhole(kMostWorkers))
          ->capture_default_str();
  CLI::Option* bandwidth =
      sub->add_option(
             "--bandwidth", command->bandwidths,
             "Between any two workers, per second; of several levels between any two of their groups, too")
          ->type_name("BYTES,BYTES,...")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->capture_default_str();
  sub->add_option("--cluster", command->cluster,
                  "Workers and bandwidths of a cluster's devices, inside its nodes and between them "
                  "(docs/clusters.md)")
      ->excludes(workers)
      ->excludes(bandwidth);
  sub->add_option("--memory", command->memory,
                  "Of each worker, for activations and weights of minibatches in flight beside the newest "
                  "(default: no limit)")
      ->type_name("BYTES");
  sub->add_option("--stage-file", command->stage_file,
                  "Also write the stages for a model of as many layers: `plan MODEL --stages FILE --schedule "
                  "pipedream` runs them")
      ->type_name("FILE");
  sub->add_option("--json", command->json, "Also write the plan to this file")->type_name("FILE");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
