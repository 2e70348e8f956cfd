#include "sharding/stage/megatron.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "ir/operators/operator_facts.h"

namespace pipeshard {

namespace {

constexpr int kTensorAxis = 1;  // of the mesh

bool isProduct(const Node& node) { return operatorFacts(node).multiplies_matrices; }

// Where one region of element-wise work ends and another begins.
bool isBorder(const Node& node) {
  const OperatorFacts& facts = operatorFacts(node);
  return facts.work == WorkClass::kContraction || facts.work == WorkClass::kConvolution || facts.looks_up;
}

// A normalisation that is written out has a mean of every row.
bool isNormalization(const Node& node) {
  return operatorFacts(node).normalizes_rows || node.is("ReduceMean");
}

class Stream {
 public:
  Stream(const TrainingGraph& training, const std::vector<NodeId>& nodes, const BatchDependence& batch)
      : training_(training), batch_(batch) {
    leader_.resize(training.graph.nodes.size());
    std::iota(leader_.begin(), leader_.end(), size_t{0});
    join(nodes);
    for (NodeId id : nodes) {
      const Node& node = training.graph.node(id);
      if (isNormalization(node) && hasRows(node)) normalized_.insert(find(id.index()));
    }
  }

  // The node is in a region between matrix products in which rows are normalised: the residual stream.
  bool contains(NodeId id) const {
    return normalized_.contains(find(id.index())) && !isBorder(training_.graph.node(id));
  }

 private:
  // A loss is a mean of everything, no normalisation.
  bool hasRows(const Node& node) const {
    return std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
      return output.valid() && !training_.graph.shape(output).empty();
    });
  }

  size_t find(size_t node) const {
    while (leader_[node] != node) node = leader_[node];
    return node;
  }

  void join(const std::vector<NodeId>& nodes) {
    std::vector<NodeId> reader(training_.graph.values.size());
    for (NodeId id : nodes) {
      const Node& node = training_.graph.node(id);
      if (isBorder(node) || training_.node_phase[id.index()] == Phase::kUpdate) continue;
      for (const std::vector<ValueId>* values : {&node.inputs, &node.outputs}) {
        for (ValueId value : *values) {
          if (value.valid() && batch_.influenced[value.index()] && training_.graph.shape(value).size() > 1)
            unite(id, reader[value.index()]);
        }
      }
    }
  }

  void unite(NodeId node, NodeId& other) {
    if (!other.valid()) other = node;
    leader_[find(node.index())] = find(other.index());
  }

  const TrainingGraph& training_;
  const BatchDependence& batch_;
  std::vector<size_t> leader_;
  std::set<size_t> normalized_;
};

struct Facts {
  Facts(const TrainingGraph& training, const std::vector<NodeId>& nodes,
        std::shared_ptr<const BatchDependence> dependence, bool cut_updates)
      : training(training),
        kept_alive(std::move(dependence)),
        batch(*kept_alive),
        stream(training, nodes, batch),
        only_copied(onlyCopied(training)),
        cut_updates(cut_updates) {}

  // The operand of a product that comes from weights alone; -1: none, or both.
  int weightOperand(const Node& node) const {
    if (!isProduct(node)) return -1;
    const bool left = !batch.influenced[node.inputs[0].index()];
    const bool right = !batch.influenced[node.inputs[1].index()];
    return left == right ? -1 : left ? 0 : 1;
  }

  const TrainingGraph& training;
  std::shared_ptr<const BatchDependence> kept_alive;
  const BatchDependence& batch;
  Stream stream;
  std::vector<bool> only_copied;
  bool cut_updates;
};

// Negative: not allowed.
int rankOnTensorAxis(const Facts& facts, NodeId id, const NodeChoices& choices, const AxisUse& use) {
  const Node& node = facts.training.graph.node(id);
  if (facts.stream.contains(id)) {
    // Sums are resolved before a normalisation, and gradients of the stream's own weights are whole.
    const bool whole =
        isNormalization(node) || facts.training.node_phase[id.index()] == Phase::kBackwardWeight;
    return use.kind == AxisUse::Kind::kReplicate || (use.kind == AxisUse::Kind::kPass && !whole) ? 0 : -1;
  }
  if (use.kind != AxisUse::Kind::kFactor) return 0;
  if (use.index == facts.batch.factor_of_node[id.index()]) return -1;
  if (!isProduct(node) || !choices.rule) return 0;
  const int weight = facts.weightOperand(node);
  if (weight >= 0) return holdsFactor(choices.rule->inputs[weight], use.index) ? 1 : -1;
  if (facts.training.node_phase[id.index()] == Phase::kBackwardWeight)
    return holdsFactor(choices.rule->outputs.front(), use.index) ? 1 : -1;
  return 0;
}

int rankOnDataAxis(const Facts& facts, NodeId id, const AxisUse& use) {
  if (use.kind != AxisUse::Kind::kFactor) return 0;
  return use.index == facts.batch.factor_of_node[id.index()] ? 1 : -1;
}

int rankOfUpdate(const Facts& facts, const AxisUse& on_data) {
  if (on_data.kind == AxisUse::Kind::kReplicate) return 0;
  return facts.cut_updates && on_data.kind == AxisUse::Kind::kFactor ? 1 : -1;
}

AxisUse useAt(const Strategy& strategy, size_t mesh_axis) {
  return mesh_axis < strategy.uses.size() ? strategy.uses[mesh_axis] : AxisUse{};
}

std::vector<int> allowed(const Facts& facts, NodeId id, const NodeChoices& choices) {
  std::vector<int> result;
  int most = -1;
  const bool update = runsOnce(facts.training, id);  // a copy is made where the update has put the weight
  for (size_t index = 0; index < choices.strategies.size(); ++index) {
    const Strategy& strategy = choices.strategies[index];
    const AxisUse on_data = useAt(strategy, 0);
    const AxisUse on_tensor = useAt(strategy, kTensorAxis);
    const int data = update ? rankOfUpdate(facts, on_data) : rankOnDataAxis(facts, id, on_data);
    const int tensor = update ? 0 : rankOnTensorAxis(facts, id, choices, on_tensor);
    if (data < 0 || tensor < 0) continue;
    const int rank = 2 * data + tensor;
    if (rank > most) result.clear();
    most = std::max(most, rank);
    if (rank == most) result.push_back(index);
  }
  if (result.empty()) result.push_back(0);
  return result;
}

}  // namespace

ProblemLimits megatronLimits(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                             std::shared_ptr<const BatchDependence> batch, bool cut_updates) {
  const auto facts = std::make_shared<const Facts>(training, nodes, std::move(batch), cut_updates);
  const std::vector<StageValue> values = stageValues(training, nodes, {});
  std::vector<bool> weight;
  for (const StageValue& value : values) weight.push_back(value.persistent);
  std::vector<bool> is_state(training.graph.values.size(), false);
  for (const Parameter& parameter : training.parameters) {
    for (const OptimizerState& state : parameter.states) is_state[state.value.index()] = true;
  }
  ProblemLimits limits;
  limits.strategies = [facts](NodeId node, const NodeChoices& choices) {
    if (facts->training.node_phase[node.index()] == Phase::kPrologue) {
      std::vector<int> all(choices.strategies.size());
      std::iota(all.begin(), all.end(), 0);
      return all;
    }
    return allowed(*facts, node, choices);
  };
  limits.kept = [facts, weight, is_state](ValueId value, const ShardingSpec& spec) {
    if (weight[value.index()]) {
      const bool may_be_cut = is_state[value.index()] || facts->only_copied[value.index()];
      return !spec.uses(0) || (facts->cut_updates && may_be_cut);
    }
    const int axis = facts->batch.axis_of_value[value.index()];
    if (axis < 0) return true;
    const std::vector<int>& cuts = spec.axes[axis];
    return std::find(cuts.begin(), cuts.end(), kTensorAxis) == cuts.end();
  };
  return limits;
}

}  // namespace pipeshard
