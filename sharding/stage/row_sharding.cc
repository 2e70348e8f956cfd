#include "sharding/stage/row_sharding.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "sharding/spmd/linearity.h"

namespace pipeshard {
namespace {

// Walks the nodes in order, so that what a node reads is known. A node shares the batch out along its batch
// factor; without one it passes partial sums on, if it is linear in the inputs that are some, and else does
// the same everywhere. What it gives is kept as it is given.
class RowSharding {
 public:
  RowSharding(const TrainingGraph& training, const BatchDependence& batch, const LogicalMesh& mesh)
      : training_(training), graph_(training.graph), batch_(batch) {
    result_.mesh = mesh;
    result_.strategies.resize(graph_.nodes.size());
    for (const Value& value : graph_.values) result_.kept.push_back(replicated(value.shape->size()));
    summand_.resize(graph_.values.size());
  }

  StageSharding run() {
    do {
      walk();
    } while (agree());
    return std::move(result_);
  }

 private:
  void walk() {
    for (const BatchInput& input : training_.inputs) {
      if (input.axis >= 0 && result_.mesh.axisSize(0) > 1) kept(input.value).axes[input.axis] = {0};
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      const Strategy& strategy = result_.strategies[n] = strategyOf(NodeId(n));
      for (size_t o = 0; o < node.outputs.size(); ++o) {
        if (!node.outputs[o].valid()) continue;
        kept(node.outputs[o]) = strategy.outputs[o];
        if (summand_[node.outputs[o].index()]) kept(node.outputs[o]).partial = {0};
      }
    }
    for (const ForwardState& state : training_.forward_states) kept(state.updated) = kept(state.value);
  }

  ShardingSpec& kept(ValueId value) { return result_.kept[value.index()]; }
  bool isPartial(ValueId value) { return value.valid() && !kept(value).partial.empty(); }

  Strategy strategyOf(NodeId id) {
    const Node& node = graph_.node(id);
    std::vector<AxisUse> uses(result_.mesh.rank());
    if (result_.mesh.axisSize(0) > 1 && isPass(training_.node_phase[id.index()])) {
      const int factor = batch_.factor_of_node[id.index()];
      uses[0] = {AxisUse::Kind::kFactor, factor};
      std::optional<Strategy> cut =
          factor < 0 ? std::nullopt : makeStrategy(graph_, node, result_.mesh, uses);
      if (cut) return std::move(*cut);
      uses[0] = passed(node);
    }
    std::optional<Strategy> same = makeStrategy(graph_, node, result_.mesh, uses);
    if (!same) same = makeStrategy(graph_, node, result_.mesh, std::vector<AxisUse>(uses.size()));
    return std::move(*same);
  }

  // To pass on the partial sums that the node reads: by inputs that hold them all. Others that are added to
  // them count on one device only, which costs nothing.
  AxisUse passed(const Node& node) {
    std::vector<int> sums;
    for (int input = 0; input < std::ssize(node.inputs); ++input) {
      if (isPartial(node.inputs[input])) sums.push_back(input);
    }
    if (sums.empty()) return {};
    const std::vector<std::vector<int>> lists = linearInputs(graph_, node);
    for (int list = 0; list < std::ssize(lists); ++list) {
      if (std::includes(lists[list].begin(), lists[list].end(), sums.begin(), sums.end()))
        return {AxisUse::Kind::kPass, list};
    }
    return {};
  }

  // Accumulators of one gradient are kept alike: as a sum over devices if any part is one. Others become
  // summands, which their readers then pass on: true if there are new ones.
  bool agree() {
    bool any_new = false;
    for (const Parameter& parameter : training_.parameters) {
      const std::vector<ValueId>& parts = parameter.gradient_parts;
      if (std::none_of(parts.begin(), parts.end(), [&](ValueId part) { return isPartial(part); })) continue;
      for (ValueId part : parts) {
        if (isPartial(part)) continue;
        summand_[part.index()] = true;
        any_new = true;
      }
    }
    return any_new;
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  const BatchDependence& batch_;
  StageSharding result_;
  std::vector<bool> summand_;  // by value: kept as a summand although all devices have it
};

}  // namespace

StageSharding rowSharding(const TrainingGraph& training, const BatchDependence& batch,
                          const LogicalMesh& mesh) {
  return RowSharding(training, batch, mesh).run();
}

}  // namespace pipeshard
