#include "sharding/stage/shard_stage.h"

#include <fmt/format.h>

#include "ir/base/error.h"
#include "sharding/stage/methods.h"
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

std::vector<LogicalMesh> meshesFor(int devices, const std::string& method) {
  const ShardingMethod parsed = parseMethod(method);
  using Kind = ShardingMethod::Kind;
  if (parsed.kind == Kind::kMegatron) {
    const int64_t wanted = int64_t{parsed.data} * parsed.tensor;
    if (wanted != devices) {
      fail(ErrorCode::kConfiguration, "method {}: {} x {} devices are {}, but the stage has {}", method,
           parsed.data, parsed.tensor, wanted, devices);
    }
    return {{{parsed.data, parsed.tensor}}};
  }
  std::vector<LogicalMesh> meshes = {{{devices}}};
  const bool one_way =
      parsed.kind == Kind::kDataParallel || parsed.kind == Kind::kZero2 || parsed.kind == Kind::kZero3;
  for (int rows = 2; rows < devices && !one_way; ++rows) {
    if (devices % rows == 0) meshes.push_back({{rows, devices / rows}});
  }
  return meshes;
}

}  // namespace pipeshard
