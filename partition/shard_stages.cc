#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "ir/error.h"
#include "partition/emit_cut.h"
#include "partition/node_stages.h"
#include "partition/partition.h"
#include "partition/stage_shardings.h"
#include "sharding/cross_mesh.h"
#include "sharding/shard_stage.h"

namespace pipeshard {
namespace {

constexpr std::string_view kExhaustive = "exhaustive";
constexpr int64_t kMostCombinations = 20'000;

ShardConstraint parseConstraint(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == text.size()) {
    fail(ErrorCode::kUsage,
         "--shard {}: expected NAME=SPEC with a value's name or pattern and a sharding spec, e.g. \"w1=R,S0\" or \"*.weight=S0,R\"", text);
  }
  return {text.substr(0, equals), parseSpec(text.substr(equals + 1))};
}

// A value that passes make on one stage and read on another.
struct Crossing {
  ValueId value;
  int other = 0;  // stage
  bool sent = false;
};

std::vector<Crossing> crossingsOf(const Cut& cut, int stage) {
  std::vector<Crossing> crossings;
  for (size_t v = 0; v < cut.values.size(); ++v) {
    const ValueId value(v);
    const ValuePlace& place = cut.place(value);
    if (place.role != ValueRole::kProduced || place.stage < 0) continue;
    if (place.stage != stage) {
      if (cut.reads(stage, value)) crossings.push_back({value, place.stage, false});
      continue;
    }
    for (int other = 0; other < static_cast<int>(cut.stages.size()); ++other) {
      if (other != stage && cut.reads(other, value)) crossings.push_back({value, other, true});
    }
  }
  return crossings;
}

// Parameters that several stages read or add a gradient to, and the parts of these gradients.
std::vector<ValueId> sharedParameters(const TrainingGraph& training, const Cut& cut) {
  std::vector<ValueId> shared;
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    const Parameter& parameter = training.parameters[p];
    int stages = 0;
    for (int stage = 0; stage < static_cast<int>(cut.stages.size()); ++stage)
      stages += cut.reads(stage, parameter.value) || cut.owners[p] == stage ? 1 : 0;
    for (ValueId part : parameter.gradient_parts) stages += cut.place(part).stage == cut.owners[p] ? 0 : 1;
    if (stages < 2) continue;
    shared.push_back(parameter.value);
    shared.insert(shared.end(), parameter.gradient_parts.begin(), parameter.gradient_parts.end());
  }
  return shared;
}

// The mesh that the stage file or --mesh says, else all that are worth a try.
std::vector<LogicalMesh> meshesToTry(const ShardingRequest& request, const StagePlan& stage) {
  const int devices = static_cast<int>(stage.devices.size());
  if (!stage.sharding->mesh.empty()) return {LogicalMesh{stage.sharding->mesh}};
  if (request.mesh.empty() && stage.sharding->method == kExhaustive) return {LogicalMesh{{devices}}};
  if (request.mesh.empty()) return meshesFor(devices, stage.sharding->method);
  const LogicalMesh mesh = parseMesh(request.mesh);
  if (mesh.deviceCount() != devices) {
    fail(ErrorCode::kConfiguration, "--mesh {}: it has {} devices, the stage has {}", request.mesh, mesh.deviceCount(), devices);
  }
  return {mesh};
}

// One stage among others, some of which are decided.
class StageSearch {
 public:
  StageSearch(const TrainingGraph& training, const Plan& plan, const Cut& cut)
      : training_(training), plan_(plan), cut_(cut), decided_(plan.stages.size()), whole_(valuesOfSeveralStages(training, cut)) {
    const bool by_layers =
        std::any_of(plan.stages.begin(), plan.stages.end(), [](const StagePlan& stage) { return stage.recomputation == "layers"; });
    if (by_layers) layers_ = nodeLayers(training, plan, nodeStages(training, plan));
  }

  // How many stages share the stage's devices, itself included.
  int64_t stagesBeside(int stage) const {
    return std::count(cut_.groups.begin(), cut_.groups.end(), cut_.groups[static_cast<size_t>(stage)]);
  }

  // The mesh of an earlier stage on the same devices.
  std::optional<LogicalMesh> meshBeside(int stage) const {
    for (int other = 0; other < stage; ++other) {
      const std::optional<StageSharding>& decided = decided_[static_cast<size_t>(other)];
      if (decided && isBeside(stage, other)) return decided->mesh;
    }
    return std::nullopt;
  }

  ShardStageOptions optionsFor(int stage, const LogicalMesh& mesh) const {
    const StagePlan& of = plan_.stages[static_cast<size_t>(stage)];
    ShardStageOptions options;
    options.microbatches = training_.microbatches;
    options.method = of.sharding->method;
    for (const std::string& text : of.sharding->constraints) options.constraints.push_back(parseConstraint(text));
    if (of.sharding->memory_limit > 0) options.memory_bytes = std::max<int64_t>(1, of.sharding->memory_limit / stagesBeside(stage));
    options.in_flight = of.recomputation == "always" || of.recomputation == "layers"
                            ? 1
                            : of.peak_activations;  // what is held besides, planned memory tells
    if (of.recomputation == "layers") options.recomputed_layers = layers_;
    options.replicated = sharedParameters(training_, cut_);
    const std::vector<ValueId>& whole = whole_[static_cast<size_t>(cut_.groups[static_cast<size_t>(stage)])];
    options.replicated.insert(options.replicated.end(), whole.begin(), whole.end());
    std::map<ValueId, std::vector<Crossing>> crossings;
    for (const Crossing& crossing : crossingsOf(cut_, stage)) crossings[crossing.value].push_back(crossing);
    for (auto& [value, list] : crossings) {
      std::erase_if(list, [&](const Crossing& crossing) { return isBeside(stage, crossing.other); });
      if (list.empty() || std::find(whole.begin(), whole.end(), value) != whole.end()) continue;
      const bool by_rows = std::any_of(list.begin(), list.end(), [&](const Crossing& crossing) { return sharesRows(crossing.other); });
      if (by_rows) {
        options.replicated.push_back(value);
      } else {
        options.crossings[value] = costOf(stage, mesh, std::move(list));
      }
    }
    return options;
  }

  CostModel modelOf(int stage, const LogicalMesh& mesh) const { return costModelOn(plan_.cluster, devicesOf(stage), mesh); }

  // How a stage was decided, for those that come after it.
  void decide(int stage, StageSharding sharding) { decided_[static_cast<size_t>(stage)] = std::move(sharding); }

 private:
  const std::vector<int>& devicesOf(int stage) const { return plan_.stages[static_cast<size_t>(stage)].devices; }
  bool isBeside(int stage, int other) const { return cut_.groups[static_cast<size_t>(stage)] == cut_.groups[static_cast<size_t>(other)]; }
  bool sharesRows(int stage) const { return hasUnshardedDevices(plan_.stages[static_cast<size_t>(stage)]); }

  // The other side of a crossing; undecided: replicated.
  CrossMeshSide otherSide(int stage, ValueId value) const {
    const std::optional<StageSharding>& decided = decided_[static_cast<size_t>(stage)];
    if (decided) return {decided->mesh, decided->kept[value.index()], modelOf(stage, decided->mesh)};
    const LogicalMesh mesh{{static_cast<int>(devicesOf(stage).size())}};
    return {mesh, replicated(training_.graph.shape(value).size()), modelOf(stage, mesh)};
  }

  CrossingCost costOf(int stage, const LogicalMesh& mesh, std::vector<Crossing> crossings) const {
    const auto known = std::make_shared<std::map<ShardingSpec, int64_t>>();
    return [this, stage, mesh, crossings = std::move(crossings), known, model = modelOf(stage, mesh)](const ShardingSpec& spec) {
      const auto [found, is_new] = known->try_emplace(spec, 0);
      if (!is_new) return found->second;
      for (const Crossing& crossing : crossings) {
        const CrossMeshSide own{mesh, spec, model};
        const CrossMeshSide other = otherSide(crossing.other, crossing.value);
        const std::vector<int>& from = devicesOf(crossing.sent ? stage : crossing.other);
        const std::vector<int>& to = devicesOf(crossing.sent ? crossing.other : stage);
        found->second += planCrossMesh(training_.graph.shape(crossing.value), training_.graph.dataType(crossing.value),
                                       crossing.sent ? own : other, crossing.sent ? other : own, linkBetween(plan_.cluster, from, to))
                             .cost_ns;
      }
      return found->second;
    };
  }

  const TrainingGraph& training_;
  const Plan& plan_;
  const Cut& cut_;
  std::vector<std::optional<StageSharding>> decided_;  // by stage
  std::vector<std::vector<ValueId>> whole_;            // by group: valuesOfSeveralStages
  std::vector<int> layers_;                            // by node, where a stage recomputes by layers
};

// The best sharding over all meshes. Where none can be, the first mesh's reason is thrown.
ShardingResult bestSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes, const std::vector<LogicalMesh>& meshes,
                            const std::function<CostModel(const LogicalMesh&)>& model_for,
                            const std::function<ShardStageOptions(const LogicalMesh&)>& options_for) {
  std::optional<ShardingResult> best;
  std::optional<Error> failure;
  for (const LogicalMesh& mesh : meshes) {
    try {
      ShardingResult result = shardStage(training, nodes, mesh, model_for(mesh), options_for(mesh));
      if (!best || result.total_ns() < best->total_ns()) best = std::move(result);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory && error.code() != ErrorCode::kConfiguration) throw;
      if (!failure) failure = error;
    }
  }
  if (!best) throw *failure;
  return std::move(*best);
}

// A name in which * and ? mean themselves. Patterns know no escape, so each stands for any one character.
ShardConstraint exactly(std::string name, const ShardingSpec& spec) {
  std::replace(name.begin(), name.end(), '*', '?');
  return {std::move(name), spec};
}

// The best combination, completed by the solver; all of them are added to `listed`.
ShardingResult bestCombination(const TrainingGraph& training, const std::vector<NodeId>& nodes, const LogicalMesh& mesh,
                               const CostModel& model, ShardStageOptions options, std::vector<Combination>& listed) {
  options.method = "auto";
  listed = exhaustiveSharding(training, nodes, mesh, model, options, kMostCombinations);
  for (const auto& [name, spec] : listed.back().inputs) options.constraints.push_back(exactly(name, spec));
  return shardStage(training, nodes, mesh, model, options);
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

void noteReplicated(const ShardingResult& result, Plan& plan) {
  for (const std::string& op : result.replicated_operators) {
    const std::string note = fmt::format("{} has no factor rule and runs replicated", op);
    if (std::find(plan.notes.begin(), plan.notes.end(), note) == plan.notes.end()) plan.notes.push_back(note);
  }
}

// Errors: kConfiguration when there is no such method, or it wants more devices than a stage has.
void noteNothingSharded(const std::string& method, Plan& plan) {
  if (method != kExhaustive) meshesFor(1, method);
  plan.notes.push_back(
      fmt::format("--method {} shards nothing here: every stage has one device, or says itself what its devices do; "
                  "--stages uniform:1 makes all devices one stage",
                  method));
}

}  // namespace

std::vector<StageCombinations> shardStages(const TrainingGraph& training, const ShardingRequest& request, Plan& plan,
                                           const std::function<void(const std::string&)>& progress) {
  std::vector<StageCombinations> listed;
  if (!hasShardedStage(plan)) {
    if (!request.constraints.empty() || !request.mesh.empty())
      fail(ErrorCode::kUsage, "--shard and --mesh go with --method, and with a stage of several devices (--stages uniform:1)");
    if (!request.method.empty()) noteNothingSharded(request.method, plan);
    return listed;
  }
  const Cut cut = cutTraining(training, plan);
  for (StagePlan& stage : plan.stages) {
    if (!stage.sharding) continue;
    stage.sharding->constraints = request.constraints;
    stage.sharding->memory_limit = request.memory_bytes;
  }
  const Plan asked = plan;
  StageSearch search(training, asked, cut);
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    StagePlan& stage = plan.stages[s];
    if (!stage.sharding) continue;
    const int index = static_cast<int>(s);
    const std::vector<NodeId> nodes = shardedNodes(cut, index);
    const auto options_for = [&](const LogicalMesh& mesh) {
      if (progress) progress(fmt::format("sharding stage {} on mesh {}", s, printMesh(mesh)));
      return search.optionsFor(index, mesh);
    };
    try {
      const std::optional<LogicalMesh> beside = search.meshBeside(index);
      std::vector<LogicalMesh> meshes = meshesToTry(request, stage);
      if (beside && std::find(meshes.begin(), meshes.end(), *beside) == meshes.end()) {
        fail(ErrorCode::kConfiguration, "mesh {}: an earlier stage on the same devices is sharded on mesh {}; expected one mesh for both",
             printMesh(meshes.front()), printMesh(*beside));
      }
      if (beside) meshes = {*beside};
      const bool exhaustive = stage.sharding->method == kExhaustive;
      if (exhaustive) listed.push_back({index, {}});
      const auto model_for = [&](const LogicalMesh& mesh) { return search.modelOf(index, mesh); };
      ShardingResult result =
          exhaustive ? bestCombination(training, nodes, meshes[0], model_for(meshes[0]), options_for(meshes[0]), listed.back().combinations)
                     : bestSharding(training, nodes, meshes, model_for, options_for);
      ShardingPlan chosen = describeResult(training, nodes, stage.sharding->method, result);
      chosen.constraints = request.constraints;
      chosen.memory_limit = request.memory_bytes;
      stage.sharding = std::move(chosen);
      noteReplicated(result, plan);
      search.decide(index, std::move(result.sharding));
    } catch (Error& error) {
      throw error.addContext(fmt::format("stage {}", s));
    }
  }
  return listed;
}

std::vector<StageExplanation> explainStages(const TrainingGraph& training, const Plan& plan, int alternatives,
                                            const std::function<void(const std::string&)>& progress) {
  const Cut cut = cutTraining(training, plan);
  StageSearch search(training, plan, cut);
  std::vector<StageExplanation> explanations;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    if (!stage.sharding) continue;
    if (progress) progress(fmt::format("explaining stage {}", s));
    const std::vector<NodeId> nodes = shardedNodes(cut, static_cast<int>(s));
    ShardingResult result;
    try {
      result.sharding = shardingOfPlan(training, nodes, *stage.sharding);
    } catch (Error& error) {
      throw error.addContext(fmt::format("stages[{}].sharding", s));
    }
    result.compute_ns = stage.sharding->compute_ns;
    result.communication_ns = stage.sharding->communication_ns;
    result.memory_bytes = stage.sharding->memory_bytes;
    const CostModel model = search.modelOf(static_cast<int>(s), result.sharding.mesh);
    ShardStageOptions options = search.optionsFor(static_cast<int>(s), result.sharding.mesh);
    if (options.method == kExhaustive) options.method = "auto";
    explanations.push_back({static_cast<int>(s), result.total_ns(), summarizeBlocks(training, nodes, model, options, result),
                            explainSharding(training, nodes, model, options, result, alternatives)});
    search.decide(static_cast<int>(s), std::move(result.sharding));
  }
  return explanations;
}

}  // namespace pipeshard
