#include "sharding/batch/batch_dependence.h"

#include <algorithm>
#include <optional>

#include "sharding/rules/factor_rule.h"

namespace pipeshard {

namespace {

class BatchFollower {
 public:
  explicit BatchFollower(const TrainingGraph& training) : training_(training) {
    result_.axis_of_value.assign(training.graph.values.size(), -1);
    result_.influenced.assign(training.graph.values.size(), false);
    result_.factor_of_node.assign(training.graph.nodes.size(), -1);
    rules_.resize(training.graph.nodes.size());
    for (size_t node = 0; node < training.graph.nodes.size(); ++node) {
      if (training.node_phase[node] == Phase::kUpdate) continue;
      nodes_.emplace_back(node);
      rules_[node] = factorRule(training.graph, NodeId(node));
    }
  }

  BatchDependence run() {
    for (const BatchInput& input : training_.inputs) {
      if (input.axis < 0) continue;
      result_.axis_of_value[input.value.index()] = input.axis;
      result_.influenced[input.value.index()] = true;
    }
    for (changed_ = true; changed_;) {
      changed_ = false;
      for (NodeId node : nodes_) follow(node, false);
      for (size_t index = nodes_.size(); index-- > 0;) follow(nodes_[index], true);
    }
    return std::move(result_);
  }

 private:
  // The factor that a cut of the axis cuts.
  static int leading(const FactorRule& rule, const std::vector<int>& factors) {
    for (int factor : factors) {
      if (rule.factors[factor].size > 1) return factor;
    }
    return factors.empty() ? -1 : factors.front();
  }

  int factorAt(const FactorRule& rule, const std::vector<ValueId>& values,
               const std::vector<TensorFactors>& factors) const {
    for (size_t position = 0; position < values.size(); ++position) {
      if (!values[position].valid()) continue;
      const int axis = result_.axis_of_value[values[position].index()];
      if (axis < 0 || axis >= std::ssize(factors[position])) continue;
      const int factor = leading(rule, factors[position][axis]);
      if (factor >= 0) return factor;
    }
    return -1;
  }

  void mark(ValueId id, const FactorRule& rule, const TensorFactors& factors, int factor) {
    int& axis = result_.axis_of_value[id.index()];
    for (size_t candidate = 0; axis < 0 && candidate < factors.size(); ++candidate) {
      if (leading(rule, factors[candidate]) != factor) continue;
      axis = candidate;
      changed_ = true;
    }
  }

  void follow(NodeId id, bool backwards) {
    const Node& node = training_.graph.node(id);
    const bool influenced = std::any_of(node.inputs.begin(), node.inputs.end(), [this](ValueId input) {
      return input.valid() && result_.influenced[input.index()];
    });
    for (ValueId output : node.outputs) {
      if (output.valid() && influenced) result_.influenced[output.index()] = true;
    }
    if (!rules_[id.index()]) return;
    const FactorRule& rule = *rules_[id.index()];
    int& factor = result_.factor_of_node[id.index()];
    if (factor < 0)
      factor =
          backwards ? factorAt(rule, node.outputs, rule.outputs) : factorAt(rule, node.inputs, rule.inputs);
    if (factor < 0) return;
    for (size_t output = 0; output < node.outputs.size(); ++output) {
      if (node.outputs[output].valid()) mark(node.outputs[output], rule, rule.outputs[output], factor);
    }
    for (size_t input = 0; backwards && input < node.inputs.size(); ++input) {
      const ValueId value = node.inputs[input];
      if (value.valid() && !isSource(value)) mark(value, rule, rule.inputs[input], factor);
    }
  }

  // Weights have no batch, and inputs say themselves where theirs is.
  bool isSource(ValueId id) const {
    const std::vector<ValueId>& inputs = training_.graph.inputs;
    return training_.graph.initializers.contains(id) ||
           std::find(inputs.begin(), inputs.end(), id) != inputs.end();
  }

  const TrainingGraph& training_;
  std::vector<NodeId> nodes_;
  std::vector<std::optional<FactorRule>> rules_;
  BatchDependence result_;
  bool changed_ = false;
};

}  // namespace

BatchDependence followBatch(const TrainingGraph& training) { return BatchFollower(training).run(); }

}  // namespace pipeshard
