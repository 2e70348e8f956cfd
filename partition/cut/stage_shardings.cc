#include "partition/cut/stage_shardings.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/graph/training_graph.h"
#include "sharding/batch/batch_dependence.h"
#include "sharding/specs/direct_transfer.h"
#include "sharding/stage/row_sharding.h"

namespace pipeshard {

std::vector<NodeId> shardedNodes(const Cut& cut, StageId stage) {
  std::vector<NodeId> nodes;
  const auto add = [&](const Piece& piece) {
    nodes.insert(nodes.end(), piece.nodes.begin(), piece.nodes.end());
  };
  for (Phase phase : kPassPhases) add(cut.piece(stage, phase));
  add(cut.piece(stage, Phase::kUpdate));
  add(cut.copies[stage]);
  std::sort(nodes.begin(), nodes.end());
  return nodes;
}

namespace {

// By value: whether nodes of the stage read or make it.
std::vector<bool> valuesOf(const TrainingGraph& training, const Cut& cut, StageId stage) {
  std::vector<bool> used(training.graph.values.size());
  for (NodeId id : shardedNodes(cut, stage)) {
    const Node& node = training.graph.node(id);
    for (const std::vector<ValueId>* values : {&node.inputs, &node.outputs}) {
      for (ValueId value : *values) {
        if (value.valid()) used[value.index()] = true;
      }
    }
  }
  return used;
}

}  // namespace

IdVector<PipelineRankId, std::vector<ValueId>> valuesOfSeveralStages(const TrainingGraph& training,
                                                                     const Cut& cut) {
  IdVector<PipelineRankId, std::vector<ValueId>> result(cut.groups.size());
  // by value
  IdVector<PipelineRankId, std::vector<int>> users(cut.groups.size(),
                                                   std::vector<int>(training.graph.values.size()));
  for (const StageId s : cut.groups.ids()) {
    const std::vector<bool> used = valuesOf(training, cut, s);
    for (size_t v = 0; v < used.size(); ++v) users[cut.groups[s]][v] += used[v] ? 1 : 0;
  }
  for (const PipelineRankId g : users.ids()) {
    for (size_t v = 0; v < users[g].size(); ++v) {
      const ValuePlace& place = cut.place(ValueId(v));
      const bool of_shared = place.role == ValueRole::kWeightCopy && users[g][place.weight.index()] > 1;
      if (users[g][v] > 1 || of_shared) result[g].emplace_back(v);
    }
  }
  return result;
}

bool sharesRows(const StagePlan& stage) { return !stage.sharding && stage.devices.size() > 1; }

namespace {

void requireFit(const Shape& shape, const ShardingSpec& spec, const LogicalMesh& mesh,
                const std::string& name, int64_t rows) {
  const std::string fault = specFault(spec, shape, mesh);
  if (fault.empty()) return;
  fail(ErrorCode::kConfiguration,
       "'{}' {} cannot be kept as {} on mesh {} for a microbatch of {} row(s): {}; choose fewer microbatches "
       "(--microbatches), so that each has more rows, or another sharding",
       name, shapeToString(shape), printSpec(spec), printMesh(mesh), rows, fault);
}

// What the base does as `uses` say, in the member of so many rows.
Strategy strategyOf(const Graph& base, const Graph& member, NodeId node, const LogicalMesh& mesh,
                    const std::vector<AxisUse>& uses, int64_t rows) {
  std::optional<Strategy> strategy = makeStrategy(member, member.node(node), mesh, uses);
  if (strategy) return std::move(*strategy);
  // Of a node that the file does not have, what it reads tells the place.
  const std::vector<ValueId>& inputs = member.node(node).inputs;
  const auto read = std::find_if(inputs.begin(), inputs.end(), [](ValueId id) { return id.valid(); });
  fail(ErrorCode::kConfiguration,
       "{}{} cannot run as \"{}\" on mesh {} for a microbatch of {} row(s); choose fewer microbatches "
       "(--microbatches), so that each has more rows, or another sharding",
       describeNode(member.node(node)),
       read == inputs.end() ? "" : fmt::format(", which reads '{}',", member.value(*read).name),
       printUses(base, base.node(node), uses), printMesh(mesh), rows);
}

using ChosenShardings = IdVector<StageId, std::optional<StageSharding>>;

// `rows`, `rowless`: of the meshes (LogicalMesh).
ChosenShardings shardingsOf(const TrainingGraph& training, const Plan& plan, const Cut& cut, int64_t rows,
                            const std::vector<int64_t>& rowless) {
  ChosenShardings shardings(plan.stages.size());
  for (const StageId s : plan.stages.ids()) {
    if (!plan.stages[s].sharding) continue;
    try {
      const std::vector<NodeId> nodes = shardedNodes(cut, s);
      shardings[s] = shardingOfPlan(training, nodes, *plan.stages[s].sharding, rows, rowless);
      verifyStageSharding(training, nodes, *shardings[s]);
    } catch (Error& error) {
      error.addContext(fmt::format("stages[{}].sharding", s));
      throw;
    }
  }
  return shardings;
}

// Of axes that the plan cuts where they do not hold the batch: weights, heads.
std::vector<int64_t> rowlessSizes(const TrainingGraph& training, const Plan& plan) {
  const Graph& graph = training.graph;
  const std::vector<int> batch_axis = followBatch(training).axis_of_value;
  std::set<int64_t> sizes;
  for (const StagePlan& stage : plan.stages) {
    if (!stage.sharding) continue;
    for (size_t v = 0; v < graph.values.size(); ++v) {
      const auto found = stage.sharding->specs.find(graph.values[v].name);
      if (found == stage.sharding->specs.end()) continue;
      const ShardingSpec spec = parseSpec(found->second);
      const Shape& shape = graph.shape(ValueId(v));
      for (size_t axis = 0; axis < std::min(spec.axes.size(), shape.size()); ++axis) {
        if (!spec.axes[axis].empty() && static_cast<int>(axis) != batch_axis[v]) sizes.insert(shape[axis]);
      }
    }
  }
  return {sizes.begin(), sizes.end()};
}

LogicalMesh ofRows(LogicalMesh mesh, int64_t rows) {
  if (mesh.rows > 0) mesh.rows = rows;
  return mesh;
}

// What was chosen for the largest microbatch fits those of other sizes, too. Error(kConfiguration) naming
// node or value and the rows.
void requireFittingMembers(const TrainingFamily& family, const Cut& cut, const ChosenShardings& shardings) {
  const Graph& base = family.base().graph;
  std::set<int64_t> sizes;
  for (int64_t k = 0; k < family.microbatches(); ++k) sizes.insert(family.microbatch(k).count);
  sizes.erase(family.largestMicrobatch());
  for (const int64_t rows : sizes) {
    const Graph& member = family.at(rows).graph;
    for (const StageId s : shardings.ids()) {
      if (!shardings[s]) continue;
      const StageSharding& sharding = *shardings[s];
      const LogicalMesh mesh = ofRows(sharding.mesh, rows);
      const auto require = [&](const std::vector<ValueId>& values, const std::vector<ValueId>& of_base) {
        for (size_t i = 0; i < values.size(); ++i) {
          if (!values[i].valid()) continue;
          const ShardingSpec& kept = sharding.kept[of_base[i].index()];
          if (kept.axes.size() == member.shape(values[i]).size())
            requireFit(member.shape(values[i]), kept, mesh, member.value(values[i]).name, rows);
        }
      };
      const auto nodes = shardedNodes(cut, s);
      for (const NodeId id : nodes)
        strategyOf(base, member, id, mesh, sharding.strategies[id.index()].uses, rows);
      for (const NodeId id : nodes) {
        require(member.node(id).inputs, base.node(id).inputs);
        require(member.node(id).outputs, base.node(id).outputs);
      }
    }
  }
}

// Those of the plan, for all microbatches of the family. Where the devices do not divide rows that an axis
// holds merged with others (rows x tokens), axes are cut between rows; what holds no rows is cut as ever, so
// that tensors that last are cut alike in all programs of a plan.
ChosenShardings fittingShardings(const TrainingFamily& family, const Plan& plan, const Cut& cut) {
  const bool any = std::any_of(plan.stages.begin(), plan.stages.end(),
                               [](const StagePlan& stage) { return stage.sharding.has_value(); });
  if (!any) return ChosenShardings(plan.stages.size());
  const TrainingGraph& base = family.base();
  const auto fitting = [&](int64_t rows, const std::vector<int64_t>& rowless) {
    ChosenShardings shardings = shardingsOf(base, plan, cut, rows, rowless);
    requireFittingMembers(family, cut, shardings);
    return shardings;
  };
  std::optional<Error> misfit;
  try {
    return fitting(0, {});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    misfit = error;
  }
  try {
    return fitting(family.largestMicrobatch(), rowlessSizes(base, plan));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
  }
  throw Error(*misfit);
}

}  // namespace

IdVector<StageId, std::optional<StageSharding>> shardingsOf(const TrainingGraph& training, const Plan& plan) {
  return shardingsOf(training, plan, cutTraining(training, plan), 0, {});
}

void requireFittingMicrobatches(const TrainingFamily& family, const Plan& plan) {
  fittingShardings(family, plan, cutTraining(family.base(), plan));
}

StageShardings::StageShardings(const TrainingFamily& family, const Plan& plan, const Cut& cut, bool in_turn)
    : family_(family), cluster_(plan.cluster), stages_(plan.stages.size()) {
  for (const StagePlan& stage : plan.stages) {
    shares_rows_.push_back(pipeshard::sharesRows(stage));
    devices_.push_back(stage.devices);
  }
  takeChosen(plan, cut);
  agree(family.base(), cut);
  takeParts(family.base(), cut);
  if (!in_turn) shareRows(plan, cut);
}

void StageShardings::takeChosen(const Plan& plan, const Cut& cut) {
  const Graph& graph = family_.base().graph;
  ChosenShardings chosen = fittingShardings(family_, plan, cut);
  for (const StageId s : stages_.ids()) {
    if (!chosen[s]) continue;
    // What the stage has nothing of is nowhere asked for, or comes whole.
    for (size_t v = 0; v < graph.values.size(); ++v) {
      if (chosen[s]->kept[v].axes.size() != graph.shape(ValueId(v)).size())
        chosen[s]->kept[v] = replicated(graph.shape(ValueId(v)).size());
    }
    CostModel model = costModelOn(cluster_, devices_[s], chosen[s]->mesh);
    stages_[s] = {std::make_shared<const StageSharding>(std::move(*chosen[s])), std::move(model)};
  }
}

void StageShardings::shareRows(const Plan& plan, const Cut& cut) {
  const TrainingGraph& training = family_.base();
  std::optional<BatchDependence> batch;
  std::map<std::vector<int>, std::shared_ptr<const StageSharding>> by_mesh;
  for (const StageId s : stages_.ids()) {
    const StagePlan& stage = plan.stages[s];
    if (!shares_rows_[s]) continue;
    if (!batch) batch = followBatch(training);
    const LogicalMesh mesh{stage.mesh_shape, family_.largestMicrobatch()};
    std::shared_ptr<const StageSharding>& sharding = by_mesh[mesh.shape];
    if (sharding == nullptr)
      sharding = std::make_shared<const StageSharding>(rowSharding(training, *batch, mesh));
    verifyStageSharding(training, shardedNodes(cut, s), *sharding);
    stages_[s] = {sharding, CostModel::uniform(mesh)};  // nothing is left to be weighed
  }
}

LogicalMesh StageShardings::mesh(StageId stage, int64_t rows) const {
  return ofRows(of(stage).sharding->mesh, rows);
}

void StageShardings::takeParts(const TrainingGraph& training, const Cut& cut) {
  for (size_t p = 0; p < training.parameters.size(); ++p) {
    const Parameter& parameter = training.parameters[p];
    if (!isTrained(parameter) || !cut.owners[p].valid()) continue;
    const PipelineRankId group = cut.groups[cut.owners[p]];
    for (ValueId part : parameter.gradient_parts) {
      if (cut.groups[cut.place(part).stage] == group) continue;
      for (const StageId s : stages_.ids()) {
        if (cut.groups[s] != group || !stages_[s]) continue;
        StageSharding taking = *stages_[s]->sharding;
        taking.kept[part.index()] = taking.kept[parameter.gradient.index()];
        stages_[s]->sharding = std::make_shared<const StageSharding>(std::move(taking));
      }
    }
  }
}

void StageShardings::agree(const TrainingGraph& training, const Cut& cut) {
  const size_t values = training.graph.values.size();
  for (const PipelineRankId g : idsBelow<PipelineRankId>(cut.groups.size())) {
    std::vector<StageId> stages;
    for (const StageId s : cut.groups.ids()) {
      if (cut.groups[s] == g && stages_[s]) stages.push_back(s);
    }
    if (stages.size() < 2) continue;
    const LogicalMesh& mesh = stages_[stages.front()]->sharding->mesh;
    std::vector<ShardingSpec> kept = stages_[stages.front()]->sharding->kept;
    std::vector<StageId> user(values);
    for (const StageId s : stages) {
      if (stages_[s]->sharding->mesh != mesh) {
        fail(ErrorCode::kConfiguration,
             "stages {} and {} share their devices, but are sharded on meshes {} and {}; expected one mesh "
             "(--mesh)",
             stages.front(), s, printMesh(mesh), printMesh(stages_[s]->sharding->mesh));
      }
      const std::vector<bool> used = valuesOf(training, cut, s);
      for (size_t v = 0; v < values; ++v) {
        if (!used[v]) continue;
        const ShardingSpec& own = stages_[s]->sharding->kept[v];
        if (user[v].valid() && own != kept[v]) {
          fail(ErrorCode::kConfiguration,
               "stages {} and {} share their devices, but keep '{}' as {} and {}; expected one spec", user[v],
               s, training.graph.values[v].name, printSpec(kept[v]), printSpec(own));
        }
        kept[v] = own;
        user[v] = s;
      }
    }
    for (const StageId s : stages) {
      StageSharding agreed = *stages_[s]->sharding;
      agreed.kept = kept;
      stages_[s]->sharding = std::make_shared<const StageSharding>(std::move(agreed));
    }
  }
}

PieceSharding StageShardings::pieceSharding(StageId stage, const std::vector<NodeId>& nodes, int64_t rows,
                                            const Graph& subgraph) const {
  const StageSharding& sharding = *of(stage).sharding;
  const LogicalMesh mesh = this->mesh(stage, rows);
  const Graph& base = family_.base().graph;
  const Graph& member = family_.at(rows).graph;
  PieceSharding piece{mesh, of(stage).model, {}, std::vector<ShardingSpec>(subgraph.values.size())};
  std::unordered_map<std::string_view, ValueId> base_of;  // by name in the member
  const auto match = [&](const std::vector<ValueId>& of_member, const std::vector<ValueId>& of_base) {
    for (size_t i = 0; i < of_member.size(); ++i) {
      if (of_member[i].valid()) base_of.emplace(member.value(of_member[i]).name, of_base[i]);
    }
  };
  for (NodeId id : nodes) {
    const Node& node = member.node(id);
    const std::vector<AxisUse>& uses = sharding.strategies[id.index()].uses;
    piece.strategies.push_back(strategyOf(base, member, id, mesh, uses, rows));
    match(node.inputs, base.node(id).inputs);
    match(node.outputs, base.node(id).outputs);
  }
  for (size_t v = 0; v < subgraph.values.size(); ++v) {
    const auto found = base_of.find(subgraph.values[v].name);
    if (found == base_of.end()) continue;
    piece.kept[v] = sharding.kept[found->second.index()];
    if (piece.kept[v].axes.size() == subgraph.shape(ValueId(v)).size()) {
      requireFit(subgraph.shape(ValueId(v)), piece.kept[v], mesh, subgraph.values[v].name, rows);
    }
  }
  return piece;
}

CrossMeshSide StageShardings::side(StageId stage, ValueId value, int64_t rows) const {
  if (isSharded(stage)) return {mesh(stage, rows), kept(stage, value), model(stage)};
  const LogicalMesh one{{1}};
  return {one, replicated(family_.base().graph.shape(value).size()), CostModel::uniform(one)};
}

bool StageShardings::transfersAreChosen(StageId from, StageId to) const {
  return (isChosen(from) || isChosen(to)) && !shares_rows_[from] && !shares_rows_[to];
}

CrossMeshPlan StageShardings::planTransfer(ValueId value, int64_t rows, StageId from, StageId to) const {
  const Graph& member = family_.at(rows).graph;
  const ValueId counterpart = family_.valueAt(rows, value);
  for (StageId stage : {from, to}) {
    if (isSharded(stage))
      requireFit(member.shape(counterpart), kept(stage, value), mesh(stage, rows),
                 member.value(counterpart).name, rows);
  }
  const Shape& shape = member.shape(counterpart);
  const DataType type = member.dataType(counterpart);
  const CrossMeshSide sent = side(from, value, rows), received = side(to, value, rows);
  return transfersAreChosen(from, to)
             ? planCrossMesh(shape, type, sent, received, linkBetween(cluster_, devices_[from], devices_[to]))
             : planDirectTransfer(shape, type, sent, received, LinkCost{});
}

const CrossMeshPlan& StageShardings::transfer(ValueId value, int64_t rows, StageId from, StageId to) const {
  std::unique_lock lock(transfers_mutex_);
  Transfer& transfer = transfers_[{value, rows, from, to}];
  lock.unlock();
  const std::lock_guard planning(transfer.mutex);
  if (!transfer.plan) transfer.plan = planTransfer(value, rows, from, to);
  return *transfer.plan;
}

}  // namespace pipeshard
