#include "sharding/stage/shard_stage.h"

#include <fmt/format.h>

#include "ir/base/error.h"
#include "sharding/stage/stage_context.h"

namespace pipeshard {

namespace {

std::vector<std::string> operatorsWithoutRule(const Graph& graph, const std::vector<NodeId>& nodes) {
  std::vector<std::string> result;
  std::map<std::string, std::string> example;
  for (NodeId id : nodes) {
    const Node& node = graph.node(id);
    const std::string op = fmt::format("{}::{}", node.domain.empty() ? "onnx" : node.domain, node.op_type);
    if (example.contains(op) || factorRule(graph, node)) continue;
    example[op] = node.name;
  }
  for (const auto& [op, name] : example) result.push_back(fmt::format("{} '{}'", op, name));
  return result;
}

}  // namespace

ShardingResult shardStage(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                          const LogicalMesh& mesh, const CostModel& model, const ShardStageOptions& options) {
  const StageContext context(training, nodes, mesh, model, options);
  const ShardingProblem problem(training, nodes, mesh, model, context.options, context.limits);
  ShardingResult result = context.solve(problem, {});
  result.replicated_operators = operatorsWithoutRule(training.graph, nodes);
  return result;
}

std::vector<LogicalMesh> meshesFor(int devices, const ShardingMethod& method) {
  PIPESHARD_CHECK(!method.isAnyGrid(), "method {} of no grid", shardingMethodToString(method));
  if (method.hasGrid()) {
    const int64_t wanted = int64_t{method.data} * method.tensor;
    if (wanted != devices) {
      fail(ErrorCode::kConfiguration, "method {}: {} x {} devices are {}, but the stage has {}",
           shardingMethodToString(method), method.data, method.tensor, wanted, devices);
    }
    return {{{method.data, method.tensor}}};
  }
  std::vector<LogicalMesh> meshes = {{{devices}}};
  if (method.batchAxes() == BatchAxes::kAll || method.kind == ShardingKind::kExhaustive) return meshes;
  for (int rows = 2; rows < devices; ++rows) {
    if (devices % rows == 0) meshes.push_back({{rows, devices / rows}});
  }
  return meshes;
}

}  // namespace pipeshard
