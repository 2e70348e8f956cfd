#include "ir/plan/plan.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/amounts.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

// "3.00 GFLOP": three digits before a unit of a thousand.
std::string scaled(int64_t amount, std::string_view unit) {
  constexpr std::string_view kPrefixes[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t prefix = 0;
  auto value = static_cast<double>(amount);
  for (; value >= 1000 && prefix + 1 < std::size(kPrefixes); ++prefix) value /= 1000;
  return prefix == 0 ? fmt::format("{} {}", amount, unit)
                     : fmt::format("{:.2f} {}{}", value, kPrefixes[prefix], unit);
}

// "0", "0,2", "1..3": three or more in a row as a range.
std::string deviceList(const std::vector<RankId>& devices) {
  std::string text;
  for (size_t i = 0; i < devices.size();) {
    size_t end = i + 1;
    while (end < devices.size() && devices[end] == devices[end - 1].next()) ++end;
    if (end - i < 3) end = i + 1;
    text += fmt::format("{}{}", text.empty() ? "" : ",", devices[i]);
    if (end - i >= 3) text += fmt::format("..{}", devices[end - 1]);
    i = end;
  }
  return text;
}

// "1.23 ms": three or more digits of a time.
std::string duration(int64_t ns) {
  if (ns < 1000) return fmt::format("{} ns", ns);
  if (ns < 1000000) return fmt::format("{:.2f} us", static_cast<double>(ns) / 1e3);
  if (ns < 1000000000) return fmt::format("{:.2f} ms", static_cast<double>(ns) / 1e6);
  return fmt::format("{:.2f} s", static_cast<double>(ns) / 1e9);
}

std::string shardingLine(StageId s, const StagePlan& stage) {
  const ShardingPlan& sharding = *stage.sharding;
  const std::string bound = sharding.optimal ? "optimal" : "at least " + duration(sharding.lower_bound_ns);
  return fmt::format("  sharding of stage {}: {} on {}, {} compute + {} communication ({}), {} per device\n",
                     s, shardingMethodToString(sharding.method), meshText(stage),
                     duration(sharding.compute_ns), duration(sharding.communication_ns), bound,
                     formatBytes(sharding.memory_bytes));
}

// "always", where all stages do the same; else "stage 0 always, stage 2 except-last"; "" where none does.
std::string recomputationText(const Plan& plan) {
  std::string text;
  size_t equal = 0;
  for (const StageId s : plan.stages.ids()) {
    const Recomputation mode = plan.stages[s].recomputation;
    equal += mode == plan.stages.front().recomputation ? 1 : 0;
    if (mode != Recomputation::kNever)
      text += fmt::format("{}stage {} {}", text.empty() ? "" : ", ", s, recomputationName(mode));
  }
  return equal == plan.stages.size() && !text.empty()
             ? std::string(recomputationName(plan.stages.front().recomputation))
             : text;
}

}  // namespace

bool hasShardedStage(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const StagePlan& stage) { return stage.sharding.has_value(); });
}

std::string meshText(const StagePlan& stage) {
  if (stage.sharding) return fmt::format("{}", fmt::join(stage.sharding->mesh, "x"));
  const int data = stage.mesh_shape.at(0), copies = stage.mesh_shape.at(1);
  if (copies == 1) return fmt::format("{}", data);
  return data == 1 ? fmt::format("{} copies", copies) : fmt::format("{} x {} copies", data, copies);
}

std::string printPlan(const Plan& plan) {
  std::string text = fmt::format("plan of {}\n", plan.model_path);
  text += fmt::format("  cluster       {}\n", printCluster(plan.cluster));
  if (!plan.profile.empty()) text += fmt::format("  profile       {}\n", plan.profile);
  text += fmt::format("  schedule      {}, {} microbatch{}\n", scheduleSpecToString(plan.schedule),
                      plan.microbatches, plan.microbatches == 1 ? "" : "es");
  if (plan.updates_per_step > 1)
    text += fmt::format("  window        {} updates per step\n", plan.updates_per_step);
  if (plan.last_batch > 0) {
    text += fmt::format("  last batch    {} row{} in {} microbatch{}\n", plan.last_batch,
                        plan.last_batch == 1 ? "" : "s", plan.last_microbatches,
                        plan.last_microbatches == 1 ? "" : "es");
  }
  text += fmt::format("  loss          {}\n  optimizer     {}\n  precision     {}\n", plan.loss,
                      optimizerToString(plan.given.optimizer), dataTypeName(plan.given.precision));
  if (const std::string recomputed = recomputationText(plan); !recomputed.empty())
    text += "  recomputes    " + recomputed + "\n";
  for (const auto& [name, size] : plan.dimensions) {
    const std::string shorter = name == plan.length_dimension
                                    ? fmt::format(", {} (planned for the longest; programs for each)",
                                                  fmt::join(plan.shorter_lengths, ", "))
                                    : "";
    text += fmt::format("  dimension     {} = {}{}{}\n", name, size, shorter,
                        name == plan.batch_dimension ? " (cut into microbatches)" : "");
  }
  int64_t total = 0;
  bool meshes = false;  // some stage has several devices
  for (const StagePlan& stage : plan.stages) {
    total += stage.forward_flops + stage.backward_flops;
    meshes = meshes || stage.devices.size() > 1;
  }
  const auto mesh = [&](const std::string& cell) {
    return meshes ? fmt::format("  {:>12}", cell) : std::string();
  };
  text += fmt::format("\n  {:>5}  {:>9}{}  {:>9}  {:>12}  {:>12}  {:>6}  {:>13}  {:>9}  {}\n", "stage",
                      "devices", mesh("mesh"), "layers", "forward", "backward", "share", "parameters",
                      "in flight", "ends with");
  for (const StageId s : plan.stages.ids()) {
    const StagePlan& stage = plan.stages[s];
    text += fmt::format("  {:>5}  {:>9}{}  {:>9}  {:>12}  {:>12}  {:>6}  {:>13}  {:>9}  {}\n", s.index(),
                        deviceList(stage.devices), mesh(meshText(stage)),
                        fmt::format("{}..{}", stage.first_layer, stage.last_layer),
                        scaled(stage.forward_flops, "FLOP"), scaled(stage.backward_flops, "FLOP"),
                        formatShare(stage.forward_flops + stage.backward_flops, total),
                        formatBytes(stage.parameter_bytes), stage.peak_activations,
                        plan.layers.at(stage.last_layer).last_node);
  }
  if (hasShardedStage(plan)) text += "\n";
  for (const StageId s : plan.stages.ids()) {
    if (plan.stages[s].sharding) text += shardingLine(s, plan.stages[s]);
  }
  if (!plan.notes.empty()) text += "\n";
  for (const std::string& note : plan.notes) text += "  note: " + note + "\n";
  return text;
}

}  // namespace pipeshard
