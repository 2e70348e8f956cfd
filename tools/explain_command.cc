// `explain`: why a plan shards its stages as it does.
#include <cmath>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/text_file.h"
#include "planning/directory/plan_directory.h"
#include "planning/explain_plan.h"
#include "sharding/stage/blocks.h"
#include "sharding/stage/explain.h"
#include "tools/commands.h"
#include "tools/console.h"
#include "tools/options/option_checks.h"
#include "tools/report/search_tables.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

// What the devices of a searched plan compute, beside the peak that they have for products; "" where that is
// not known, or devices differ.
std::string averageRate(const Plan& plan) {
  if (!plan.search || plan.search->chosen >= plan.search->alternatives.size()) return "";
  if (plan.cluster.kinds.size() != 1) return "";
  const WorkRate* rate = plan.cluster.kinds[0].rate(WorkClass::kContraction, plan.given.precision);
  const int64_t step_ns = plan.search->alternatives[plan.search->chosen].step_ns;
  if (step_ns <= 0 || rate == nullptr || rate->flops.points.empty()) return "";
  double flops = 0;
  for (const StagePlan& stage : plan.stages)
    flops += static_cast<double>(stage.forward_flops + stage.backward_flops);
  const double average = flops * static_cast<double>(plan.microbatches) /
                         (static_cast<double>(step_ns) * plan.cluster.deviceCount());
  constexpr double kMuch = 1e15;
  const double peak = kMuch / static_cast<double>(rate->flops.at(kMuch));  // per nanosecond
  return fmt::format(
      "\na device computes {}/s on average, without what is recomputed: {:.0f} % of its {}/s for {} "
      "products\n",
      formatFlops(std::llround(average * 1e9)), 100 * average / peak, formatFlops(std::llround(peak * 1e9)),
      dataTypeName(plan.given.precision));
}

// "13.6 s compute, 2.87 s communication (1.1 s of it to other stages)".
std::string predictedTimes(const ShardingPlan& sharding, const std::vector<Decision>& decisions) {
  int64_t between = sharding.communication_ns;
  for (const Decision& decision : decisions) between -= decision.communication_ns;
  return fmt::format(
      "{} compute, {} communication{}", formatNanoseconds(sharding.compute_ns),
      formatNanoseconds(sharding.communication_ns),
      between <= 0 ? "" : fmt::format(" ({} of it to other stages)", formatNanoseconds(between)));
}

struct ExplainCommand {
  std::string directory;
  std::string json;
  int most = 20;
  int alternatives = 5;

  int run() const {
    const Plan plan = readPlanDirectory(directory);
    fmt::print("{}{}{}", printPlan(plan), averageRate(plan), searchTables(plan, true));
    nlohmann::ordered_json report;
    report["stages"] = nlohmann::ordered_json::array();
    Progress progress;
    std::vector<StageExplanation> explanations =
        explainPlan(plan, alternatives, [&](const std::string& phase) { progress.phase(phase); });
    progress.clear();
    for (const StageExplanation& explanation : explanations) {
      print(plan.stages.at(explanation.stage), explanation);
      report["stages"].push_back(toJson(explanation));
    }
    if (explanations.empty() && !plan.search) {
      fmt::print(
          "\nno stage is sharded: the devices of a stage share the rows of every microbatch. `pipeshard plan "
          "MODEL --stages uniform:1 --method auto` shards operators\n");
    }
    if (!json.empty()) writeTextFile(json, report.dump(1) + "\n");
    return 0;
  }

 private:
  void print(const StagePlan& stage, const StageExplanation& explanation) const {
    const ShardingPlan& sharding = *stage.sharding;
    fmt::print("\nstage {} on devices {}, logical mesh {}, method {}\n", explanation.stage,
               fmt::join(stage.devices, ","), meshText(stage), shardingMethodToString(sharding.method));
    fmt::print("  predicted per step: {}; {}\n", predictedTimes(sharding, explanation.decisions),
               sharding.optimal ? std::string("proven optimal")
                                : fmt::format("no sharding costs less than {}",
                                              formatNanoseconds(sharding.lower_bound_ns)));
    const BlockSummary& blocks = explanation.blocks;
    fmt::print("  {} block{} of {} operators (the first begins with {}):\n", blocks.repeats,
               blocks.repeats == 1 ? "" : "s", blocks.nodes, blocks.first);
    for (size_t axis = 0; axis < blocks.patterns.size(); ++axis) {
      fmt::print("    mesh axis {} ({} devices): {}\n", axis, sharding.mesh.at(axis), blocks.patterns[axis]);
    }
    std::vector<std::vector<std::string>> rows = {
        {"decision", "chosen", "compute", "communication", "second best", "would cost"}};
    int64_t hidden = 0;
    for (const Decision& decision : explanation.decisions) {
      if (std::ssize(rows) > most) {
        ++hidden;
        continue;
      }
      rows.push_back(
          {decision.name, decision.chosen, formatNanoseconds(decision.compute_ns),
           formatNanoseconds(decision.communication_ns), decision.second ? decision.second->text : "",
           decision.second
               ? fmt::format("+{}", formatNanoseconds(decision.second->cost_ns - explanation.total_ns))
               : ""});
    }
    fmt::print("\n{}", formatTable(rows));
    if (hidden > 0) fmt::print("... and {} more (--most N, --json lists all)\n", hidden);
  }

  static nlohmann::ordered_json toJson(const StageExplanation& explanation) {
    nlohmann::ordered_json entry;
    entry["stage"] = explanation.stage.index();
    entry["total_ns"] = explanation.total_ns;
    entry["blocks"] = {{"first", explanation.blocks.first},
                       {"nodes", explanation.blocks.nodes},
                       {"repeats", explanation.blocks.repeats},
                       {"patterns", explanation.blocks.patterns}};
    entry["decisions"] = nlohmann::ordered_json::array();
    for (const Decision& decision : explanation.decisions) {
      nlohmann::ordered_json one = {{"name", decision.name},
                                    {"chosen", decision.chosen},
                                    {"compute_ns", decision.compute_ns},
                                    {"communication_ns", decision.communication_ns}};
      if (decision.second)
        one["second"] = {{"chosen", decision.second->text}, {"total_ns", decision.second->cost_ns}};
      entry["decisions"].push_back(std::move(one));
    }
    return entry;
  }
};

}  // namespace

CommandFunction addExplainCommand(CLI::App& app) {
  auto command = std::make_shared<ExplainCommand>();
  CLI::App* sub = app.add_subcommand(
      "explain", "Why a plan's stages are sharded as they are: each decision, its cost, the second best");
  sub->add_option("DIR", command->directory, "A plan directory")->required();
  sub->add_option("--most", command->most, "Rows per table")->check(positiveWhole())->capture_default_str();
  sub->add_option("--alternatives", command->alternatives,
                  "For how many of the dearest decisions the second best is sought")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_option("--json", command->json, "Also write everything to this file")->type_name("FILE");
  sub->footer(
      "Example: pipeshard plan examples/gpt2.onnx --cluster 1x4 --stages uniform:1 --method auto -o "
      "gpt2.plan && pipeshard explain gpt2.plan");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
