// `cluster`: what a --cluster stands for, as tables or as a file.
#include <memory>

#include <fmt/format.h>

#include "ir/base/amounts.h"
#include "ir/base/text_file.h"
#include "ir/cluster/cluster_file.h"
#include "ir/cluster/cluster_presets.h"
#include "tools/commands.h"
#include "tools/options/cluster_option.h"
#include "tools/report/text_table.h"

namespace pipeshard {
namespace {

using Table = std::vector<std::vector<std::string>>;

// The rate that a curve has in the end, and the time that its least amount takes.
std::string curveText(const CostCurve& curve, double efficiency, std::string_view unit, double scale) {
  if (curve.points.empty()) return "";
  constexpr double kLarge = 1e15;
  const double rate =
      kLarge / static_cast<double>(std::max<int64_t>(1, curve.at(2 * kLarge) - curve.at(kLarge)));
  return fmt::format("{:.4g} {}{}, from {}", rate / scale, unit,
                     efficiency == 1 ? "" : fmt::format(" x {:.3g}", efficiency),
                     formatNanoseconds(curve.at(0)));
}

std::string linkText(const Link& link) {
  if (!link.measured.points.empty()) return "measured: " + curveText(link.measured, 1, "GB/s", 1);
  return fmt::format("{:.4g} GB/s, {}", link.bytes_per_ns, formatNanoseconds(link.latency_ns));
}

std::string insideText(const ClusterNode& node) {
  std::string text = linkText(node.inside);
  for (const GroupRate& group : node.inside_groups)
    text += fmt::format("; groups of {}: {:.4g}", group.devices, group.bytes_per_ns);
  return text + (node.shared_memory ? ", shared" : "");
}

void printNodes(const Cluster& cluster) {
  Table table = {{"nodes", "devices", "kind", "memory", "link inside", "NICs"}};
  for (size_t n = 0; n < cluster.nodes.size();) {
    const size_t first = n;
    const ClusterNode& node = cluster.nodes[n];
    while (n < cluster.nodes.size() && cluster.nodes[n] == node) ++n;
    const DeviceKind& kind = cluster.kinds[node.kind];
    table.push_back({n - first == 1 ? fmt::format("{}", first) : fmt::format("{}..{}", first, n - 1),
                     fmt::format("{}", node.devices), kind.name,
                     kind.memory_bytes > 0 ? formatBytes(kind.memory_bytes) : "no limit", insideText(node),
                     fmt::format("{} x {}", node.nics, linkText(node.nic))});
  }
  fmt::print("{}", formatTable(table));
}

void printKind(const DeviceKind& kind) {
  fmt::print("\n{}{}\n", kind.name, kind.source.empty() ? "" : " (" + kind.source + ")");
  if (!kind.isKnown()) {
    fmt::print("  nothing is known of its rates: 50 GFLOP/s and 10 GB/s are taken\n");
    return;
  }
  Table table = {{"class", "type", "computing", "moving"}};
  for (const WorkRate& rate : kind.rates) {
    const double efficiency = kind.efficiency[static_cast<size_t>(rate.work_class)];
    const CostCurve& bytes = rate.bytes.points.empty() ? kind.memory : rate.bytes;
    table.push_back({std::string(workClassName(rate.work_class)), std::string(dataTypeName(rate.type)),
                     curveText(rate.flops, efficiency, "TFLOP/s", 1e3),
                     curveText(bytes, efficiency, "GB/s", 1)});
  }
  fmt::print("{}", formatTable(table));
}

struct ClusterCommand {
  std::string name;
  std::string json;

  int run() const {
    if (name.empty()) {
      Table table = {{"preset", "what"}};
      for (const ClusterPreset& preset : clusterPresets()) table.push_back({preset.name, preset.description});
      fmt::print("{}", formatTable(table));
      return 0;
    }
    const Cluster cluster = readCluster(name);
    fmt::print("{}\n\n", printCluster(cluster));
    printNodes(cluster);
    for (const DeviceKind& kind : cluster.kinds) printKind(kind);
    if (!json.empty()) writeTextFile(json, clusterFileText(cluster));
    return 0;
  }
};

}  // namespace

CommandFunction addClusterCommand(CLI::App& app) {
  auto command = std::make_shared<ClusterCommand>();
  CLI::App* sub = app.add_subcommand(
      "cluster", "Show what a --cluster stands for: nodes, devices, rates, links; without one, the presets");
  sub->add_option("CLUSTER", command->name, clusterHelp());
  sub->add_option("--json", command->json, "Write it to this file, for changes")->type_name("FILE");
  sub->footer(
      "Examples: pipeshard cluster p3.16xlarge:8\n"
      "          pipeshard cluster dgx-a100:2 --json mine.json && pipeshard plan model.onnx --cluster "
      "mine.json -o model.plan");
  return [command] { return command->run(); };
}

}  // namespace pipeshard
