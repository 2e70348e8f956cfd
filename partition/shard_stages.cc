#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "ir/error.h"
#include "partition/emit_cut.h"
#include "partition/node_stages.h"
#include "partition/partition.h"
#include "partition/stage_shardings.h"
#include "sharding/shard_stage.h"

namespace pipeshard {
namespace {

ShardConstraint parseConstraint(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    fail(ErrorCode::kUsage,
         "--shard {}: expected NAME=SPEC with a value's name or pattern and a sharding spec, e.g. \"w1=R,S0\" or \"*.weight=S0,R\"", text);
  }
  return {text.substr(0, equals), parseSpec(text.substr(equals + 1))};
}

// Values that the stage has in common with others: sent, received, or a parameter that several stages read.
std::vector<ValueId> sharedValues(const TrainingGraph& training, const Cut& cut, int stage) {
  std::vector<ValueId> shared;
  const int stages = static_cast<int>(cut.stages.size());
  for (size_t v = 0; v < cut.values.size(); ++v) {
    const ValueId value(v);
    const ValuePlace& place = cut.place(value);
    if (place.role != ValueRole::kProduced || place.stage < 0) continue;
    bool crosses = place.stage != stage && cut.reads(stage, value);
    for (int other = 0; other < stages && place.stage == stage; ++other) crosses = crosses || (other != stage && cut.reads(other, value));
    if (crosses) shared.push_back(value);
  }
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    const Parameter& parameter = training.parameters[p];
    int readers = 0;
    for (int other = 0; other < stages; ++other) readers += cut.reads(other, parameter.value) || cut.owners[p] == other ? 1 : 0;
    for (ValueId part : parameter.gradient_parts) readers += cut.place(part).stage == cut.owners[p] ? 0 : 1;
    if (readers < 2) continue;
    shared.push_back(parameter.value);
    shared.insert(shared.end(), parameter.gradient_parts.begin(), parameter.gradient_parts.end());
  }
  return shared;
}

// The mesh that the stage file or --mesh says, else all that are worth a try.
std::vector<LogicalMesh> meshesToTry(const ShardingRequest& request, const StagePlan& stage) {
  const int devices = static_cast<int>(stage.devices.size());
  if (!stage.sharding->mesh.empty()) return {LogicalMesh{stage.sharding->mesh}};
  if (request.mesh.empty()) return meshesFor(devices, stage.sharding->method);
  const LogicalMesh mesh = parseMesh(request.mesh);
  if (mesh.deviceCount() != devices) {
    fail(ErrorCode::kConfiguration, "--mesh {}: it has {} devices, the stage has {}", request.mesh, mesh.deviceCount(), devices);
  }
  return {mesh};
}

// The best sharding over all meshes to try. Where none can be, the first mesh's reason is thrown.
ShardingResult bestSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes, const std::vector<LogicalMesh>& meshes,
                            const ShardStageOptions& options, const std::function<void(const LogicalMesh&)>& progress) {
  std::optional<ShardingResult> best;
  std::optional<Error> failure;
  for (const LogicalMesh& mesh : meshes) {
    progress(mesh);
    try {
      ShardingResult result = shardStage(training, nodes, mesh, CostModel::uniform(mesh), options);
      if (!best || result.total_ns() < best->total_ns()) best = std::move(result);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory && error.code() != ErrorCode::kConfiguration) throw;
      if (!failure) failure = error;
    }
  }
  if (!best) throw *failure;
  return std::move(*best);
}

ShardingPlan describeResult(const TrainingGraph& training, const std::vector<NodeId>& nodes, const std::string& method,
                            const ShardingResult& result) {
  ShardingPlan plan;
  plan.method = method;
  describeSharding(training, nodes, result.sharding, plan);
  plan.compute_ns = result.compute_ns;
  plan.communication_ns = result.communication_ns;
  plan.memory_bytes = result.memory_bytes;
  plan.lower_bound_ns = result.lower_bound_ns;
  plan.optimal = result.optimal;
  return plan;
}

ShardStageOptions optionsOf(const TrainingGraph& training, const ShardingRequest& request) {
  ShardStageOptions options;
  for (const std::string& text : request.constraints) options.constraints.push_back(parseConstraint(text));
  options.microbatches = training.microbatches;
  options.seconds = request.seconds;
  if (request.memory_bytes > 0) options.memory_bytes = request.memory_bytes;
  return options;
}

void setStage(const TrainingGraph& training, const Cut& cut, const StagePlan& stage, int index, ShardStageOptions& options) {
  options.method = stage.sharding->method;
  options.replicated = sharedValues(training, cut, index);
  options.in_flight = stage.peak_activations;
}

}  // namespace

void shardStages(const TrainingGraph& training, const ShardingRequest& request, Plan& plan,
                 const std::function<void(const std::string&)>& progress) {
  if (!hasShardedStage(plan)) {
    if (!request.constraints.empty() || !request.mesh.empty() || request.memory_bytes > 0)
      fail(ErrorCode::kUsage, "--shard, --mesh and --memory go with --method, and with a stage of several devices (--stages uniform:1)");
    return;
  }
  ShardStageOptions options = optionsOf(training, request);
  const Cut cut = cutTraining(training, plan);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    StagePlan& stage = plan.stages[s];
    if (!stage.sharding) continue;
    const std::vector<NodeId> nodes = shardedNodes(cut, static_cast<int>(s));
    setStage(training, cut, stage, static_cast<int>(s), options);
    const auto show = [&](const LogicalMesh& mesh) {
      if (progress) progress(fmt::format("sharding stage {} on mesh {}", s, printMesh(mesh)));
    };
    try {
      const ShardingResult result = bestSharding(training, nodes, meshesToTry(request, stage), options, show);
      stage.sharding = describeResult(training, nodes, options.method, result);
      for (const std::string& op : result.replicated_operators) {
        const std::string note = fmt::format("{} has no factor rule and runs replicated", op);
        if (std::find(plan.notes.begin(), plan.notes.end(), note) == plan.notes.end()) plan.notes.push_back(note);
      }
    } catch (Error& error) {
      throw error.addContext(fmt::format("stage {}", s));
    }
  }
}

std::vector<StageExplanation> explainStages(const TrainingGraph& training, const ShardingRequest& request, const Plan& plan,
                                            int alternatives, const std::function<void(const std::string&)>& progress) {
  ShardStageOptions options = optionsOf(training, request);
  const Cut cut = cutTraining(training, plan);
  std::vector<StageExplanation> explanations;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    if (!stage.sharding) continue;
    if (progress) progress(fmt::format("explaining stage {}", s));
    const std::vector<NodeId> nodes = shardedNodes(cut, static_cast<int>(s));
    setStage(training, cut, stage, static_cast<int>(s), options);
    ShardingResult result;
    result.sharding = shardingOfPlan(training, nodes, *stage.sharding);
    result.compute_ns = stage.sharding->compute_ns;
    result.communication_ns = stage.sharding->communication_ns;
    result.memory_bytes = stage.sharding->memory_bytes;
    const CostModel model = CostModel::uniform(result.sharding.mesh);
    explanations.push_back(
        {static_cast<int>(s), result.total_ns(), explainSharding(training, nodes, model, options, result, alternatives)});
  }
  return explanations;
}

}  // namespace pipeshard
