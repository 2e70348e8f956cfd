#include "sharding/stage/blocks.h"

#include <map>
#include <set>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"
#include "sharding/batch/batch_dependence.h"
#include "sharding/rules/factor_rule.h"
#include "sharding/stage/repeats.h"
#include "sharding/stage/stage_price.h"
#include "sharding/stage/stage_values.h"

namespace pipeshard {

namespace {

struct AxisCounts {
  // how matrix products with weights are cut: "batch", "columns", "rows", "experts"
  std::set<std::string> products;
  std::map<CollectiveKind, int> forward;
  std::map<CollectiveKind, int> backward;
};

std::string plural(const std::map<CollectiveKind, int>& counts) {
  static const std::map<CollectiveKind, std::string_view> kNames = {
      {CollectiveKind::kAllReduce, "all-reduce"},
      {CollectiveKind::kAllGather, "all-gather"},
      {CollectiveKind::kReduceScatter, "reduce-scatter"},
      {CollectiveKind::kAllToAll, "all-to-all"}};
  std::string text;
  for (const auto& [kind, count] : counts) {
    text +=
        fmt::format("{}{} {}{}", text.empty() ? "" : " and ", count, kNames.at(kind), count == 1 ? "" : "s");
  }
  return text;
}

std::string patternOf(const AxisCounts& counts) {
  std::string text = "replicated";
  if (counts.products.contains("experts")) {
    text = "expert-parallel";
  } else if (counts.products.contains("columns") && counts.products.contains("rows")) {
    text = "column-parallel then row-parallel";
  } else if (counts.products.contains("columns")) {
    text = "column-parallel";
  } else if (counts.products.contains("rows")) {
    text = "row-parallel";
  } else if (counts.products.contains("batch")) {
    text = "data-parallel";
  }
  if (text != "data-parallel" && counts.products.contains("batch")) text += " and data-parallel, by product";
  if (!counts.forward.empty()) text += fmt::format(", {} forward", plural(counts.forward));
  if (!counts.backward.empty()) text += fmt::format(", {} backward", plural(counts.backward));
  return text;
}

class BlockReader {
 public:
  explicit BlockReader(const TrainingGraph& training) : training_(training), batch_(followBatch(training)) {}

  // How a forward product of something with a weight is cut along a mesh axis; "" for other nodes.
  std::string productUse(NodeId id, const Strategy& strategy, size_t mesh_axis) const {
    const Node& node = training_.graph.node(id);
    if (!operatorFacts(node).multiplies_matrices) return "";
    if (mesh_axis >= strategy.uses.size() || strategy.uses[mesh_axis].kind != AxisUse::Kind::kFactor)
      return "";
    const int factor = strategy.uses[mesh_axis].index;
    if (factor == batch_.factor_of_node[id.index()]) return "batch";
    const bool left = !batch_.influenced[node.inputs[0].index()];
    const bool right = !batch_.influenced[node.inputs[1].index()];
    const auto rule = factorRule(training_.graph, node);
    if (left == right || !rule) return "";
    const bool in_weight = holdsFactor(rule->inputs[left ? 0 : 1], factor);
    const bool in_other = holdsFactor(rule->inputs[left ? 1 : 0], factor);
    if (!in_weight) return "batch";
    if (in_other) return holdsFactor(rule->outputs.front(), factor) ? "experts" : "rows";
    return "columns";
  }

 private:
  const TrainingGraph& training_;
  BatchDependence batch_;
};

std::vector<NodeId> forwardNodes(const TrainingGraph& training, const std::vector<NodeId>& nodes) {
  std::vector<NodeId> forward;
  for (NodeId node : nodes) {
    if (training.node_phase[node.index()] == Phase::kForward) forward.push_back(node);
  }
  return forward;
}

RepeatedRun blocksOf(const TrainingGraph& training, const std::vector<NodeId>& forward) {
  const std::vector<int64_t> equal_weights(forward.size(), 1);
  const RepeatedRun run = heaviestRun(structuralNumbers(training.graph, forward), equal_weights, 2);
  return run.repeats > 0 ? run : RepeatedRun{0, forward.size(), 1, forward.size()};
}

}  // namespace

BlockSummary summarizeBlocks(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                             const CostModel& model, const ShardStageOptions& options,
                             const ShardingResult& result) {
  const std::vector<NodeId> forward = forwardNodes(training, nodes);
  if (forward.empty()) return {};
  const RepeatedRun run = blocksOf(training, forward);
  // Blocks at the ends have other neighbours.
  const size_t begin = run.begin + run.period * (run.repeats / 2);
  const std::set<NodeId> block(forward.begin() + begin, forward.begin() + begin + run.period);
  const LogicalMesh& mesh = result.sharding.mesh;
  std::vector<AxisCounts> counts(mesh.rank());
  const BlockReader reader(training);
  for (NodeId node : block) {
    for (size_t axis = 0; axis < counts.size(); ++axis) {
      const std::string use = reader.productUse(node, result.sharding.strategies[node.index()], axis);
      if (!use.empty()) counts[axis].products.insert(use);
    }
  }
  const std::vector<StageValue> values = stageValues(training, nodes, options.replicated);
  const StagePrice price = priceStage(training, nodes, values, result.sharding, model, options.microbatches);
  for (const StageResharding& entry : price.reshardings) {
    const NodeId node = entry.reader.valid() ? entry.reader : values[entry.value.index()].producer;
    if (!node.valid()) continue;
    const Phase phase = training.node_phase[node.index()];
    if (phase == Phase::kUpdate || phase == Phase::kPrologue) continue;
    const bool is_forward = phase == Phase::kForward;
    if (!block.contains(is_forward ? node : training.forward_node[node.index()])) continue;
    for (const ReshardingStep& step : entry.resharding.steps) {
      const auto kind = collectiveOf(step.kind);
      AxisCounts& axis = counts[step.mesh_axis];
      if (kind) ++(is_forward ? axis.forward : axis.backward)[*kind];
    }
  }
  const Node& first = training.graph.node(forward[run.begin]);
  BlockSummary summary{first.name, run.period, run.repeats, {}};
  for (const AxisCounts& axis : counts) summary.patterns.push_back(patternOf(axis));
  return summary;
}

}  // namespace pipeshard
