#include "tools/report/search_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

constexpr size_t kMostStagesInARow = 8;
constexpr size_t kFewStageCosts = 40;  // that `plan` shows, too

std::string layersText(const SearchedStage& stage) {
  return fmt::format("{}..{}", stage.first_layer, stage.last_layer);
}

std::string meshText(const SearchedStage& stage) {
  return fmt::format(
      "{}{}", fmt::join(stage.mesh, "x"),
      stage.method.kind == ShardingKind::kAuto ? "" : " " + shardingMethodToString(stage.method));
}

std::string submeshText(const SearchedStage& stage) {
  return fmt::format("{}x{}", stage.nodes, stage.devices_per_node);
}

// "[0..3] 1x2 as 2x1 [4..5] 1x1 as 1 (layers)": with the mode of stages that recompute.
std::string stagesText(const SearchedPlan& plan) {
  std::string text;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (s == kMostStagesInARow) return text + fmt::format(" ... {} in all", plan.stages.size());
    const SearchedStage& stage = plan.stages[s];
    text += fmt::format("{}[{}] {} as {}", s == 0 ? "" : " ", layersText(stage), submeshText(stage),
                        meshText(stage));
    if (stage.recomputation != Recomputation::kNever)
      text += fmt::format(" ({})", recomputationName(stage.recomputation));
  }
  return text;
}

std::string chosenTable(const SearchedPlan& plan) {
  std::vector<std::vector<std::string>> rows = {{"stage", "layers", "submesh", "from device", "logical mesh",
                                                 "recomputation", "pass", "per step", "memory"}};
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const SearchedStage& stage = plan.stages[s];
    rows.push_back({std::to_string(s), layersText(stage), submeshText(stage),
                    std::to_string(stage.first_device), meshText(stage),
                    std::string(recomputationName(stage.recomputation)), formatNanoseconds(stage.pass_ns),
                    formatNanoseconds(stage.step_ns), formatBytes(stage.memory_bytes)});
  }
  return formatTable(rows);
}

std::string bestTable(const SearchRecord& record) {
  std::vector<std::vector<std::string>> rows = {{"", "predicted step", "memory", "microbatches", "schedule",
                                                 "[layers] submesh as mesh (recomputation)"}};
  for (size_t i = 0; i < record.alternatives.size(); ++i) {
    const SearchedPlan& plan = record.alternatives[i];
    rows.push_back({i == record.chosen ? "chosen" : "", formatNanoseconds(plan.step_ns),
                    formatBytes(plan.memory_bytes), std::to_string(plan.microbatches),
                    scheduleSpecToString(plan.schedule), stagesText(plan)});
  }
  return formatTable(rows);
}

std::string reasonsTable(const SearchRecord& record) {
  std::vector<std::vector<std::string>> rows = {{"about", "chosen", "instead", "would cost", ""}};
  const int64_t chosen = record.alternatives.empty() ? 0 : record.alternatives[record.chosen].step_ns;
  for (const PlanReason& reason : record.reasons) {
    const int64_t more = reason.step_ns - chosen;
    rows.push_back({reason.about, reason.chosen, reason.instead,
                    reason.step_ns == 0 ? ""
                                        : fmt::format("{}{}", more < 0 ? "-" : "+",
                                                      formatNanoseconds(more < 0 ? -more : more)),
                    reason.why});
  }
  return formatTable(rows);
}

std::string costsTable(const SearchRecord& record) {
  std::vector<std::vector<std::string>> rows = {
      {"layers", "submesh", "logical mesh", "recomputation", "pass", "per step", "memory"}};
  for (const SearchedStage& stage : record.stage_costs) {
    rows.push_back({layersText(stage), submeshText(stage), meshText(stage),
                    std::string(recomputationName(stage.recomputation)), formatNanoseconds(stage.pass_ns),
                    formatNanoseconds(stage.step_ns), formatBytes(stage.memory_bytes)});
  }
  return formatTable(rows);
}

}  // namespace

std::string searchTables(const Plan& plan, bool all) {
  if (!plan.search || plan.search->alternatives.empty()) return "";
  const SearchRecord& record = *plan.search;
  std::string text = fmt::format("\nchosen by a search ({}; then simulated){}\n{}", record.objective,
                                 record.complete ? "" : ", which was cut short: the best that was found",
                                 chosenTable(record.alternatives[record.chosen]));
  text += fmt::format("\nthe best plans found\n{}", bestTable(record));
  if (all && !record.reasons.empty())
    text += fmt::format("\nwhat other decisions would have cost\n{}", reasonsTable(record));
  if (!record.stage_costs.empty() && (all || record.stage_costs.size() <= kFewStageCosts)) {
    text += fmt::format(
        "\nwhat stages cost: the best way of each run of layers on each kind of submesh, with one microbatch "
        "in flight\n{}",
        costsTable(record));
  }
  return text;
}

}  // namespace pipeshard
