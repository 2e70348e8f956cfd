#include "sharding/stage/stage_values.h"

#include <algorithm>
#include <map>
#include <utility>

namespace pipeshard {

namespace {

void addNode(const Graph& graph, NodeId id, std::vector<StageValue>& values) {
  const Node& node = graph.node(id);
  for (size_t input = 0; input < node.inputs.size(); ++input) {
    if (!node.inputs[input].valid()) continue;
    StageValue& value = values[node.inputs[input].index()];
    value.held = true;
    if (value.readers.empty() || value.readers.back().node != id) value.readers.push_back({id, {}});
    value.readers.back().positions.push_back(input);
  }
  for (size_t output = 0; output < node.outputs.size(); ++output) {
    if (!node.outputs[output].valid()) continue;
    StageValue& value = values[node.outputs[output].index()];
    value.held = true;
    value.producer = id;
    value.output = output;
    value.partial_allowed = true;
  }
}

class StageRoles {
 public:
  explicit StageRoles(std::vector<StageValue>& values) : values_(values) {}

  void fix(ValueId id) {
    if (!id.valid()) return;
    of(id).fixed_replicated = true;
    of(id).partial_allowed = false;
  }
  // `follower` is kept like `leader`, and both stay from step to step.
  void keep(ValueId leader, ValueId follower) {
    of(leader).persistent = true;
    of(leader).constant = false;
    of(leader).partial_allowed = false;
    if (!follower.valid()) return;
    of(follower).shares = leader;
    of(follower).partial_allowed = false;
  }
  // The first that the stage holds stands for all.
  void share(const std::vector<ValueId>& parts) {
    const auto held = std::find_if(parts.begin(), parts.end(), [&](ValueId part) { return of(part).held; });
    for (ValueId part : parts) of(part).shares = held == parts.end() ? parts.front() : *held;
  }
  StageValue& of(ValueId id) { return values_[id.index()]; }

 private:
  std::vector<StageValue>& values_;
};

// Copies of weights stay for the whole step; those of one weight in one type are one.
void shareCopies(const TrainingGraph& training, StageRoles& roles) {
  const Graph& graph = training.graph;
  std::map<std::pair<ValueId, DataType>, std::vector<ValueId>> copies;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!isWeightCopy(training, NodeId(n))) continue;
    const ValueId copy = graph.nodes[n].outputs[0];
    roles.keep(copy, {});
    copies[{graph.nodes[n].inputs[0], graph.dataType(copy)}].push_back(copy);
  }
  for (const auto& [weight, of_weight] : copies) roles.share(of_weight);
}

}  // namespace

std::vector<bool> onlyCopied(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  std::vector<bool> copied(graph.values.size()), read(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!isPass(training.node_phase[n])) continue;
    std::vector<bool>& mark = isWeightCopy(training, NodeId(n)) ? copied : read;
    for (const ValueId input : graph.nodes[n].inputs) {
      if (input.valid()) mark[input.index()] = true;
    }
  }
  for (size_t v = 0; v < copied.size(); ++v) copied[v] = copied[v] && !read[v];
  return copied;
}

std::vector<StageValue> stageValues(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                    const std::vector<ValueId>& replicated) {
  const Graph& graph = training.graph;
  std::vector<StageValue> values(graph.values.size());
  for (size_t index = 0; index < values.size(); ++index) values[index].shares = ValueId(index);
  for (NodeId node : nodes) addNode(graph, node, values);
  for (const auto& [id, initializer] : graph.initializers) {
    values[id.index()].constant = std::holds_alternative<Constant>(initializer);
    values[id.index()].persistent = !values[id.index()].constant;
  }
  StageRoles roles(values);
  for (const Parameter& parameter : training.parameters) {
    roles.keep(parameter.value, parameter.updated);
    for (const OptimizerState& state : parameter.states) roles.keep(state.value, state.updated);
    if (!parameter.gradient_parts.empty()) roles.share(parameter.gradient_parts);
  }
  for (const ForwardState& state : training.forward_states) {
    roles.keep(state.value, state.updated);
    roles.fix(state.value);
    roles.fix(state.updated);
  }
  for (const PrologueTotal& total : training.totals) {
    roles.fix(total.part);
    roles.fix(total.total);
  }
  shareCopies(training, roles);
  for (NodeId node : nodes) {
    if (training.node_phase[node.index()] != Phase::kPrologue) continue;
    for (ValueId output : graph.node(node).outputs) roles.fix(output);
  }
  for (const ModelOutput& output : training.outputs) roles.of(output.value).partial_allowed = false;
  roles.fix(training.step);
  roles.fix(training.gradient_scale);
  roles.fix(training.loss_scale);
  for (ValueId value : replicated) roles.fix(value);
  return values;
}

}  // namespace pipeshard
