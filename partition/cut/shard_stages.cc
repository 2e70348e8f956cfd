#include "partition/cut/shard_stages.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "partition/cut/cut_training.h"
#include "partition/cut/layer_recomputation.h"
#include "partition/cut/node_stages.h"
#include "partition/cut/stage_shardings.h"
#include "sharding/batch/batch_dependence.h"
#include "sharding/specs/cross_mesh.h"
#include "sharding/stage/shard_stage.h"

namespace pipeshard {
namespace {

constexpr int64_t kMostCombinations = 20'000;

// A value that passes make on one stage and read on another, once per microbatch. Or once per step: a
// parameter that several stages read, and the parts of its gradient.
struct Crossing {
  ValueId value;
  StageId other;
  bool sent = false;
  ValueId at_other = value;  // whose spec the other stage keeps it in
  const Parameter* parameter = nullptr;
};

std::vector<Crossing> crossingsOf(const Cut& cut, StageId stage) {
  std::vector<Crossing> crossings;
  for (size_t v = 0; v < cut.values.size(); ++v) {
    const ValueId value(v);
    const ValuePlace& place = cut.place(value);
    if (place.role != ValueRole::kProduced || !place.stage.valid()) continue;
    if (place.stage != stage) {
      if (cut.reads(stage, value)) crossings.push_back({value, place.stage, false});
      continue;
    }
    for (const StageId other : cut.stages.ids()) {
      if (other != stage && cut.reads(other, value)) crossings.push_back({value, other, true});
    }
  }
  return crossings;
}

// What other groups of devices exchange of trained parameters with the stage's. Parts of a gradient come to
// the owner as its update reads the gradient.
std::vector<Crossing> exchangesOf(const TrainingGraph& training, const Cut& cut, StageId stage) {
  const auto groupOf = [&](StageId other) { return cut.groups[other]; };
  std::vector<Crossing> exchanges;
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    const Parameter& parameter = training.parameters[p];
    const StageId owner = cut.owners[p];
    if (!isTrained(parameter) || !owner.valid()) continue;
    std::vector<PipelineRankId> groups = {groupOf(owner)};
    for (const StageId reader : cut.stages.ids()) {
      if (!cut.reads(reader, parameter.value) ||
          std::find(groups.begin(), groups.end(), groupOf(reader)) != groups.end())
        continue;
      groups.push_back(groupOf(reader));
      if (stage == owner) exchanges.push_back({parameter.value, reader, true, parameter.value, &parameter});
      if (stage == reader) exchanges.push_back({parameter.value, owner, false, parameter.value, &parameter});
    }
    ValueId first_here;  // stands for all parts of the stage
    for (ValueId part : parameter.gradient_parts) {
      const StageId maker = cut.place(part).stage;
      if (groupOf(maker) == groupOf(owner)) continue;
      if (stage == maker && !first_here.valid()) first_here = part;
      if (stage == maker) exchanges.push_back({first_here, owner, true, parameter.gradient, &parameter});
      if (stage == owner) exchanges.push_back({parameter.gradient, maker, false, part, &parameter});
    }
  }
  return exchanges;
}

std::vector<ValueId> wholeOf(const Parameter& parameter) {
  std::vector<ValueId> values = {parameter.value};
  if (isTrained(parameter)) values.push_back(parameter.gradient);
  values.insert(values.end(), parameter.gradient_parts.begin(), parameter.gradient_parts.end());
  return values;
}

// Parameters that several stages of a group of devices read or add a gradient to, with what becomes of these
// gradients: such stages keep them in one way.
std::vector<ValueId> sharedParameters(const TrainingGraph& training, const Cut& cut, PipelineRankId group) {
  std::vector<ValueId> shared;
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    const Parameter& parameter = training.parameters[p];
    int stages = 0;
    for (const StageId stage : cut.stages.ids()) {
      if (cut.groups[stage] != group) continue;
      const auto isMadeHere = [&](ValueId part) { return cut.place(part).stage == stage; };
      const std::vector<ValueId>& parts = parameter.gradient_parts;
      stages += cut.reads(stage, parameter.value) || cut.owners[p] == stage ||
                        std::any_of(parts.begin(), parts.end(), isMadeHere)
                    ? 1
                    : 0;
    }
    if (stages < 2) continue;
    const std::vector<ValueId> values = wholeOf(parameter);
    shared.insert(shared.end(), values.begin(), values.end());
  }
  return shared;
}

// The mesh that the stage file or --mesh says, else all that are worth a try.
std::vector<LogicalMesh> meshesToTry(const ShardingRequest& request, const StagePlan& stage) {
  const int devices = stage.devices.size();
  if (!stage.sharding->mesh.empty()) return {LogicalMesh{stage.sharding->mesh}};
  if (!request.mesh) return meshesFor(devices, stage.sharding->method);
  if (request.mesh->deviceCount() != devices) {
    fail(ErrorCode::kConfiguration, "--mesh {}: it has {} devices, the stage has {}",
         printMesh(*request.mesh), request.mesh->deviceCount(), devices);
  }
  return {*request.mesh};
}

// One stage among others, some of which are decided.
class StageSearch {
 public:
  StageSearch(const TrainingGraph& training, const Plan& plan, const Cut& cut)
      : training_(training),
        plan_(plan),
        cut_(cut),
        decided_(plan.stages.size()),
        whole_(valuesOfSeveralStages(training, cut)) {
    const bool by_layers = std::any_of(plan.stages.begin(), plan.stages.end(), [](const StagePlan& stage) {
      return isByLayers(stage.recomputation);
    });
    if (by_layers) {
      layers_ = nodeLayers(training, plan, nodeStages(training, plan));
      kept_selectively_ = selectiveRecomputation(training, layers_).kept;
    }
  }

  // How many stages share the stage's devices, itself included.
  int64_t stagesBeside(StageId stage) const {
    return std::count(cut_.groups.begin(), cut_.groups.end(), cut_.groups[stage]);
  }

  // The mesh of an earlier stage on the same devices.
  std::optional<LogicalMesh> meshBeside(StageId stage) const {
    for (const StageId other : idsBelow<StageId>(stage.index())) {
      const std::optional<StageSharding>& decided = decided_[other];
      if (decided && isBeside(stage, other)) return decided->mesh;
    }
    return std::nullopt;
  }

  ShardStageOptions optionsFor(StageId stage, const LogicalMesh& mesh) const {
    const StagePlan& of = plan_.stages[stage];
    ShardStageOptions options;
    options.microbatches = training_.microbatches;
    options.method = of.sharding->method;
    options.constraints = of.sharding->constraints;
    if (options.method.batchAxes() != BatchAxes::kFree) options.batch = batch();
    if (of.sharding->memory_limit > 0)
      options.memory_bytes = std::max<int64_t>(1, of.sharding->memory_limit / stagesBeside(stage));
    // of a stage that makes all again, only what it was given is held besides: planned memory tells
    options.in_flight = of.recomputation == Recomputation::kAlways ? 1 : of.peak_activations;
    options.whole_backward = !cut_.piece(stage, Phase::kBackward).empty();
    if (isByLayers(of.recomputation)) options.recomputed_layers = layers_;
    if (of.recomputation == Recomputation::kSelective) options.kept_anyway = kept_selectively_;
    const PipelineRankId group = cut_.groups[stage];
    std::vector<ValueId>& whole = options.replicated;
    whole = sharedParameters(training_, cut_, group);
    whole.insert(whole.end(), whole_[group].begin(), whole_[group].end());
    const std::set<ValueId> beside(whole.begin(), whole.end());
    std::map<ValueId, std::vector<Crossing>> crossings;
    for (const Crossing& crossing : crossingsOf(cut_, stage)) crossings[crossing.value].push_back(crossing);
    for (const Crossing& crossing : exchangesOf(training_, cut_, stage))
      crossings[crossing.value].push_back(crossing);
    for (auto& [value, list] : crossings) {
      std::erase_if(list, [&](const Crossing& crossing) { return isBeside(stage, crossing.other); });
      if (list.empty() || beside.contains(value)) continue;
      const auto by_rows = std::find_if(list.begin(), list.end(), [&](const Crossing& crossing) {
        return sharesRows(plan_.stages[crossing.other]);
      });
      if (by_rows == list.end()) {
        options.crossings[value] = costOf(stage, mesh, std::move(list));
      } else if (by_rows->parameter == nullptr) {
        whole.push_back(value);
      } else {
        for (ValueId one : wholeOf(*by_rows->parameter)) whole.push_back(one);
      }
    }
    return options;
  }

  CostModel modelOf(StageId stage, const LogicalMesh& mesh) const {
    return costModelOn(plan_.cluster, devicesOf(stage), mesh);
  }

  // How a stage was decided, for those that come after it.
  void decide(StageId stage, StageSharding sharding) { decided_[stage] = std::move(sharding); }

 private:
  // Of the whole graph: found once for all stages.
  const std::shared_ptr<const BatchDependence>& batch() const {
    if (batch_ == nullptr) batch_ = std::make_shared<const BatchDependence>(followBatch(training_));
    return batch_;
  }
  const std::vector<RankId>& devicesOf(StageId stage) const { return plan_.stages[stage].devices; }
  bool isBeside(StageId stage, StageId other) const { return cut_.groups[stage] == cut_.groups[other]; }

  // The other side of a crossing; undecided: replicated.
  CrossMeshSide otherSide(StageId stage, ValueId value) const {
    const std::optional<StageSharding>& decided = decided_[stage];
    const LogicalMesh mesh =
        decided ? decided->mesh : LogicalMesh{{static_cast<int>(devicesOf(stage).size())}};
    const size_t rank = training_.graph.shape(value).size();
    const bool is_known = decided && decided->kept[value.index()].axes.size() == rank;
    return {mesh, is_known ? decided->kept[value.index()] : replicated(rank), modelOf(stage, mesh)};
  }

  CrossingCost costOf(StageId stage, const LogicalMesh& mesh, std::vector<Crossing> crossings) const {
    const auto known = std::make_shared<std::map<ShardingSpec, int64_t>>();
    return [this, stage, mesh, crossings = std::move(crossings), known,
            model = modelOf(stage, mesh)](const ShardingSpec& spec) {
      const auto [found, is_new] = known->try_emplace(spec, 0);
      if (!is_new) return found->second;
      for (const Crossing& crossing : crossings) {
        const CrossMeshSide own{mesh, spec, model};
        const CrossMeshSide other = otherSide(crossing.other, crossing.at_other);
        const std::vector<RankId>& from = devicesOf(crossing.sent ? stage : crossing.other);
        const std::vector<RankId>& to = devicesOf(crossing.sent ? crossing.other : stage);
        const int64_t cost =
            planCrossMesh(training_.graph.shape(crossing.value), training_.graph.dataType(crossing.value),
                          crossing.sent ? own : other, crossing.sent ? other : own,
                          linkBetween(plan_.cluster, from, to))
                .cost_ns;
        const int64_t times = crossing.parameter == nullptr ? 1 : training_.microbatches;
        found->second += (cost + times - 1) / times;
      }
      return found->second;
    };
  }

  const TrainingGraph& training_;
  const Plan& plan_;
  const Cut& cut_;
  IdVector<StageId, std::optional<StageSharding>> decided_;
  IdVector<PipelineRankId, std::vector<ValueId>> whole_;  // valuesOfSeveralStages
  std::vector<LayerId> layers_;                           // by node, where a stage recomputes by layers
  std::vector<bool> kept_selectively_;                    // by value, likewise
  mutable std::shared_ptr<const BatchDependence> batch_;  // where a method has asked for it
};

// The best sharding over all meshes. Where none can be, the first mesh's reason is thrown.
ShardingResult bestSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                            const std::vector<LogicalMesh>& meshes,
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
ShardingResult bestCombination(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                               const LogicalMesh& mesh, const CostModel& model, ShardStageOptions options,
                               const std::function<void(const std::string&)>& progress,
                               std::vector<Combination>& listed) {
  options.method = {ShardingKind::kAuto};
  listed = exhaustiveSharding(training, nodes, mesh, model, options, kMostCombinations, [&](double share) {
    if (progress) progress(fmt::format("trying all combinations of shardings ({:.0f} %)", 100 * share));
  });
  for (const auto& [name, spec] : listed.back().inputs) options.constraints.push_back(exactly(name, spec));
  return shardStage(training, nodes, mesh, model, options);
}

ShardingPlan describeResult(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                            const ShardingMethod& method, const ShardingResult& result) {
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

// Of the stage that an error is about: with the device that limits its memory, where that is the cluster's.
std::string stageOfError(const Plan& plan, StageId s, const ShardingRequest& request, ErrorCode code) {
  const std::vector<RankId>& devices = plan.stages[s].devices;
  const int64_t least = plan.cluster.leastMemory(devices);
  if (code != ErrorCode::kOutOfMemory || request.memory_bytes > 0 || least == 0)
    return fmt::format("stage {}", s);
  const RankId device = *std::find_if(devices.begin(), devices.end(), [&](RankId one) {
    return plan.cluster.kindOf(one.index()).memory_bytes == least;
  });
  return fmt::format("stage {} (device {}, {}, has {} bytes)", s, device,
                     plan.cluster.kindOf(device.index()).name, least);
}

// Error(kConfiguration) when the method wants more devices than a stage has.
void noteNothingSharded(const ShardingMethod& method, Plan& plan) {
  meshesFor(1, method);
  plan.notes.push_back(
      fmt::format("--method {} shards nothing here: every stage has one device, or says itself what its "
                  "devices do; --stages uniform:1 makes all devices one stage",
                  shardingMethodToString(method)));
}

}  // namespace

int64_t ShardingRequest::memoryOf(const Cluster& cluster, const std::vector<RankId>& devices) const {
  return memory_bytes > 0 ? memory_bytes : cluster.leastMemory(devices);
}

int64_t ShardingRequest::plannedMemory(const Cluster& cluster, const std::vector<RankId>& devices) const {
  const int64_t has = memoryOf(cluster, devices);
  const auto planned = planned_memory.find(has);
  return planned == planned_memory.end() ? has : planned->second;
}

std::vector<StageCombinations> shardStages(const TrainingGraph& training, const ShardingRequest& request,
                                           Plan& plan,
                                           const std::function<void(const std::string&)>& progress) {
  std::vector<StageCombinations> listed;
  if (!hasShardedStage(plan)) {
    if (!request.constraints.empty() || request.mesh)
      fail(ErrorCode::kUsage,
           "--shard and --mesh go with --method, and with a stage of several devices (--stages uniform:1)");
    if (request.method) noteNothingSharded(*request.method, plan);
    return listed;
  }
  const Cut cut = cutTraining(training, plan);
  for (StagePlan& stage : plan.stages) {
    if (!stage.sharding) continue;
    stage.sharding->constraints = request.constraints;
    stage.sharding->memory_limit = request.plannedMemory(plan.cluster, stage.devices);
  }
  const Plan asked = plan;
  StageSearch search(training, asked, cut);
  for (const StageId s : plan.stages.ids()) {
    StagePlan& stage = plan.stages[s];
    if (!stage.sharding) continue;
    const std::vector<NodeId> nodes = shardedNodes(cut, s);
    const auto options_for = [&](const LogicalMesh& mesh) {
      if (progress) progress(fmt::format("sharding stage {} on mesh {}", s, printMesh(mesh)));
      return search.optionsFor(s, mesh);
    };
    try {
      const std::optional<LogicalMesh> beside = search.meshBeside(s);
      std::vector<LogicalMesh> meshes = meshesToTry(request, stage);
      if (beside && std::find(meshes.begin(), meshes.end(), *beside) == meshes.end()) {
        fail(
            ErrorCode::kConfiguration,
            "mesh {}: an earlier stage on the same devices is sharded on mesh {}; expected one mesh for both",
            printMesh(meshes.front()), printMesh(*beside));
      }
      if (beside) meshes = {*beside};
      const bool exhaustive = stage.sharding->method.kind == ShardingKind::kExhaustive;
      if (exhaustive) listed.push_back({s, {}});
      const auto model_for = [&](const LogicalMesh& mesh) { return search.modelOf(s, mesh); };
      ShardingResult result =
          exhaustive ? bestCombination(training, nodes, meshes[0], model_for(meshes[0]),
                                       options_for(meshes[0]), progress, listed.back().combinations)
                     : bestSharding(training, nodes, meshes, model_for, options_for);
      ShardingPlan chosen = describeResult(training, nodes, stage.sharding->method, result);
      chosen.constraints = request.constraints;
      chosen.memory_limit = stage.sharding->memory_limit;
      stage.sharding = std::move(chosen);
      noteReplicated(result, plan);
      search.decide(s, std::move(result.sharding));
    } catch (Error& error) {
      error.addContext(stageOfError(plan, s, request, error.code()));
      throw;
    }
  }
  return listed;
}

std::vector<StageExplanation> explainStages(const TrainingGraph& training, const Plan& plan, int alternatives,
                                            const std::function<void(const std::string&)>& progress) {
  const Cut cut = cutTraining(training, plan);
  StageSearch search(training, plan, cut);
  std::vector<StageExplanation> explanations;
  for (const StageId s : plan.stages.ids()) {
    const StagePlan& stage = plan.stages[s];
    if (!stage.sharding) continue;
    if (progress) progress(fmt::format("explaining stage {}", s));
    const std::vector<NodeId> nodes = shardedNodes(cut, s);
    ShardingResult result;
    try {
      result.sharding = shardingOfPlan(training, nodes, *stage.sharding);
    } catch (Error& error) {
      error.addContext(fmt::format("stages[{}].sharding", s));
      throw;
    }
    result.compute_ns = stage.sharding->compute_ns;
    result.communication_ns = stage.sharding->communication_ns;
    result.memory_bytes = stage.sharding->memory_bytes;
    const CostModel model = search.modelOf(s, result.sharding.mesh);
    ShardStageOptions options = search.optionsFor(s, result.sharding.mesh);
    if (options.method.kind == ShardingKind::kExhaustive) options.method = {ShardingKind::kAuto};
    explanations.push_back({s, result.total_ns(), summarizeBlocks(training, nodes, model, options, result),
                            explainSharding(training, nodes, model, options, result, alternatives)});
    search.decide(s, std::move(result.sharding));
  }
  return explanations;
}

}  // namespace pipeshard
