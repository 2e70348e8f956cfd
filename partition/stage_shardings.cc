#include "partition/stage_shardings.h"

#include <algorithm>
#include <unordered_map>

#include "ir/error.h"
#include "partition/partition.h"

namespace pipeshard {

std::vector<NodeId> shardedNodes(const Cut& cut, int stage) {
  std::vector<NodeId> nodes;
  for (Phase phase : {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight, Phase::kUpdate}) {
    const std::vector<NodeId>& of_phase = cut.piece(stage, phase).nodes;
    nodes.insert(nodes.end(), of_phase.begin(), of_phase.end());
  }
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

bool hasShardedStage(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [](const StagePlan& stage) { return stage.sharding.has_value(); });
}

namespace {

std::vector<std::optional<StageSharding>> shardingsOf(const TrainingGraph& training, const Plan& plan, const Cut& cut) {
  std::vector<std::optional<StageSharding>> shardings(plan.stages.size());
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (!plan.stages[s].sharding) continue;
    try {
      const std::vector<NodeId> nodes = shardedNodes(cut, static_cast<int>(s));
      shardings[s] = shardingOfPlan(training, nodes, *plan.stages[s].sharding);
      verifyStageSharding(training, nodes, *shardings[s]);
    } catch (Error& error) {
      throw error.addContext(fmt::format("stages[{}].sharding", s));
    }
  }
  return shardings;
}

}  // namespace

std::vector<std::optional<StageSharding>> shardingsOf(const TrainingGraph& training, const Plan& plan) {
  return shardingsOf(training, plan, cutTraining(training, plan));
}

StageShardings::StageShardings(const TrainingFamily& family, const Plan& plan, const Cut& cut) : family_(family) {
  for (std::optional<StageSharding>& sharding : shardingsOf(family.base(), plan, cut)) {
    std::optional<Stage>& stage = stages_.emplace_back();
    if (!sharding) continue;
    CostModel model = CostModel::uniform(sharding->mesh);
    stage = {std::move(*sharding), std::move(model)};
  }
}

PieceSharding StageShardings::pieceSharding(int stage, const std::vector<NodeId>& nodes, int64_t rows, const Graph& subgraph) const {
  const StageSharding& sharding = of(stage).sharding;
  const Graph& base = family_.base().graph;
  const Graph& member = family_.at(rows).graph;
  PieceSharding piece{sharding.mesh, of(stage).model, {}, std::vector<ShardingSpec>(subgraph.values.size())};
  std::unordered_map<std::string_view, ValueId> base_of;  // by name in the member
  const auto match = [&](const std::vector<ValueId>& of_member, const std::vector<ValueId>& of_base) {
    for (size_t i = 0; i < of_member.size(); ++i) {
      if (of_member[i].valid()) base_of.emplace(member.value(of_member[i]).name, of_base[i]);
    }
  };
  for (NodeId id : nodes) {
    const Node& node = member.node(id);
    const std::vector<AxisUse>& uses = sharding.strategies[id.index()].uses;
    std::optional<Strategy> strategy = makeStrategy(member, node, sharding.mesh, uses);
    if (!strategy) {
      fail(ErrorCode::kConfiguration,
           "{} cannot run as \"{}\" on mesh {} for a microbatch of {} row(s); choose microbatches of equal size (--microbatches), or "
           "another "
           "sharding",
           describeNode(node), printUses(base, base.node(id), uses), printMesh(sharding.mesh), rows);
    }
    piece.strategies.push_back(std::move(*strategy));
    match(node.inputs, base.node(id).inputs);
    match(node.outputs, base.node(id).outputs);
  }
  for (size_t v = 0; v < subgraph.values.size(); ++v) {
    const auto found = base_of.find(subgraph.values[v].name);
    if (found != base_of.end()) piece.kept[v] = sharding.kept[found->second.index()];
  }
  return piece;
}

}  // namespace pipeshard
