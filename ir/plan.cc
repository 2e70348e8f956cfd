#include "ir/plan.h"

#include <charconv>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/error.h"

namespace pipeshard {
namespace {

// A whole positive number, or 0 when `text` is anything else.
int positiveNumber(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number > 0 ? number : 0;
}

std::string percent(int64_t part, int64_t whole) {
  return fmt::format("{:.1f}%", whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0);
}

std::string megabytes(int64_t bytes) { return fmt::format("{:.2f} MB", static_cast<double>(bytes) / 1e6); }

std::string gigaflops(int64_t flops) { return fmt::format("{:.3f}", static_cast<double>(flops) / 1e9); }

}  // namespace

Cluster parseCluster(std::string_view text) {
  constexpr int kMostDevices = 1 << 20;
  const size_t x = text.find('x');
  if (x != std::string_view::npos) {
    const int nodes = positiveNumber(text.substr(0, x));
    const int devices = positiveNumber(text.substr(x + 1));
    if (nodes > 0 && devices > 0 && nodes <= kMostDevices / devices) return {nodes, devices};
  }
  fail(ErrorCode::kUsage, "cluster \"{}\" is not understood; write NODESxDEVICES, for example 1x4 (one node with four devices) or 2x8",
       text);
}

std::string printPlan(const Plan& plan) {
  std::string text = fmt::format("plan of {}\n", plan.model_path);
  text += fmt::format("  cluster       {} x {} devices\n", plan.cluster.nodes, plan.cluster.devices_per_node);
  text += fmt::format("  schedule      {}, {} microbatch{}\n", plan.schedule, plan.microbatches, plan.microbatches == 1 ? "" : "es");
  text +=
      fmt::format("  loss          {}\n  optimizer     {}\n  precision     {}\n", plan.loss, plan.optimizer, dataTypeName(plan.precision));
  for (const auto& [name, size] : plan.dimensions) {
    text += fmt::format("  dimension     {} = {}{}\n", name, size, name == plan.batch_dimension ? " (cut into microbatches)" : "");
  }
  int64_t total = 0;
  for (const StagePlan& stage : plan.stages) total += stage.forward_flops + stage.backward_flops;
  text += fmt::format("\n  {:>5}  {:>9}  {:>9}  {:>12}  {:>12}  {:>6}  {:>13}  {:>9}  {}\n", "stage", "devices", "layers", "fwd GFLOP",
                      "bwd GFLOP", "share", "parameters", "in flight", "ends with");
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    text += fmt::format("  {:>5}  {:>9}  {:>9}  {:>12}  {:>12}  {:>6}  {:>13}  {:>9}  {}\n", s,
                        fmt::format("{}", fmt::join(stage.devices, ",")), fmt::format("{}..{}", stage.first_layer, stage.last_layer),
                        gigaflops(stage.forward_flops), gigaflops(stage.backward_flops),
                        percent(stage.forward_flops + stage.backward_flops, total), megabytes(stage.parameter_bytes),
                        stage.peak_activations, plan.layers.at(static_cast<size_t>(stage.last_layer)).last_node);
  }
  if (!plan.notes.empty()) text += "\n";
  for (const std::string& note : plan.notes) text += "  note: " + note + "\n";
  return text;
}

}  // namespace pipeshard
