#include "ir/graph/training_graph.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

// May a node of phase `reader` read what a node of phase `writer` gives?
bool mayRead(Phase reader, Phase writer) {
  // all else reaches them through graph inputs
  if (reader == Phase::kUpdate || reader == Phase::kPrologue) return writer == reader;
  if (writer == Phase::kPrologue) return false;  // only through totals
  return static_cast<int>(writer) <= static_cast<int>(reader);
}

void verifyPhases(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  PIPESHARD_CHECK(training.node_phase.size() == graph.nodes.size(), "{} phases for {} nodes",
                  training.node_phase.size(), graph.nodes.size());
  PIPESHARD_CHECK(training.forward_node.size() == graph.nodes.size(), "{} forward nodes for {} nodes",
                  training.forward_node.size(), graph.nodes.size());
  const UseDef uses = computeUseDef(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Phase phase = training.node_phase[n];
    const NodeId forward = training.forward_node[n];
    PIPESHARD_CHECK(phase != Phase::kBackward, "{} is in neither half of the backward pass",
                    describeNode(graph.nodes[n]));
    PIPESHARD_CHECK(isBackward(phase) == forward.valid(),
                    "{}: a backward node, and only that, names its forward node",
                    describeNode(graph.nodes[n]));
    PIPESHARD_CHECK(!forward.valid() || training.node_phase[forward.index()] == Phase::kForward,
                    "{}: its forward node is none", describeNode(graph.nodes[n]));
    for (ValueId input : graph.nodes[n].inputs) {
      if (!input.valid() || !uses.producer[input.index()].valid()) continue;
      const Phase writer = training.node_phase[uses.producer[input.index()].index()];
      PIPESHARD_CHECK(mayRead(phase, writer), "{} of phase {} reads '{}' of phase {}",
                      describeNode(graph.nodes[n]), phaseName(phase), graph.value(input).name,
                      phaseName(writer));
    }
  }
}

void verifySameType(const Graph& graph, ValueId a, ValueId b) {
  PIPESHARD_CHECK(a.valid() && b.valid(), "a role refers to no value");
  PIPESHARD_CHECK(graph.dataType(a) == graph.dataType(b) && graph.shape(a) == graph.shape(b),
                  "'{}' is {}{} but '{}' is {}{}", graph.value(a).name, dataTypeName(graph.dataType(a)),
                  shapeToString(graph.shape(a)), graph.value(b).name, dataTypeName(graph.dataType(b)),
                  shapeToString(graph.shape(b)));
}

void verifyForwardStates(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  const UseDef uses = computeUseDef(graph);
  const auto isForward = [&](NodeId node) {
    return node.valid() && training.node_phase[node.index()] == Phase::kForward;
  };
  for (const ForwardState& state : training.forward_states) {
    verifySameType(graph, state.value, state.updated);
    const std::string& name = graph.value(state.value).name;
    PIPESHARD_CHECK(graph.initializers.contains(state.value), "forward state '{}' is no initializer", name);
    PIPESHARD_CHECK(isForward(uses.producer[state.updated.index()]),
                    "forward state '{}': no forward node gives '{}'", name, graph.value(state.updated).name);
    const std::vector<NodeId>& readers = uses.consumers[state.value.index()];
    PIPESHARD_CHECK(readers.size() == 1 && isForward(readers[0]),
                    "forward state '{}' has {} readers, not one forward node", name, readers.size());
    const bool learned =
        std::any_of(training.parameters.begin(), training.parameters.end(),
                    [&](const Parameter& parameter) { return parameter.value == state.value; });
    PIPESHARD_CHECK(!learned, "forward state '{}' is a parameter too", name);
  }
}

}  // namespace

std::string_view phaseName(Phase phase) {
  switch (phase) {
    case Phase::kPrologue: return "prologue";
    case Phase::kForward: return "forward";
    case Phase::kBackward: return "backward";
    case Phase::kBackwardInput: return "backward-input";
    case Phase::kBackwardWeight: return "backward-weight";
    case Phase::kUpdate: return "update";
  }
  return "unknown";
}

std::vector<ValueId> updatedValues(const Parameter& parameter) {
  std::vector<ValueId> values = {parameter.updated};
  for (const OptimizerState& state : parameter.states) values.push_back(state.updated);
  return values;
}

std::vector<NodeId> forwardNodes(const TrainingGraph& training) {
  std::vector<NodeId> nodes;
  for (size_t i = 0; i < training.graph.nodes.size(); ++i) {
    if (training.node_phase[i] == Phase::kForward) nodes.emplace_back(i);
  }
  return nodes;
}

std::vector<ValueId> forwardResults(const TrainingGraph& training) {
  std::vector<ValueId> results;
  if (training.loss.valid()) results.push_back(training.loss);
  for (const ModelOutput& output : training.outputs) results.push_back(output.value);
  return results;
}

std::vector<NodeId> nodesBehind(const TrainingGraph& training, const std::vector<NodeId>& producer,
                                const std::vector<ValueId>& values, Phase phase) {
  std::vector<ValueId> open = values;
  std::vector<NodeId> found;
  std::vector<bool> seen(training.graph.nodes.size());
  while (!open.empty()) {
    const ValueId value = open.back();
    open.pop_back();
    const NodeId node = value.valid() ? producer[value.index()] : NodeId();
    if (!node.valid() || seen[node.index()] || training.node_phase[node.index()] != phase) continue;
    seen[node.index()] = true;
    found.push_back(node);
    const std::vector<ValueId>& inputs = training.graph.node(node).inputs;
    open.insert(open.end(), inputs.begin(), inputs.end());
  }
  std::sort(found.begin(), found.end());
  return found;
}

void verifyTrainingGraph(const TrainingGraph& training) {
  const Graph& graph = training.graph;
  verifyGraph(graph);
  for (const Value& value : graph.values) {
    PIPESHARD_CHECK(value.data_type != DataType::kUndefined && value.shape && isStatic(*value.shape),
                    "value '{}' has no type or static shape", value.name);
  }
  verifyPhases(training);
  PIPESHARD_CHECK(training.microbatches >= 1, "{} microbatches", training.microbatches);
  PIPESHARD_CHECK(training.loss.valid() || !training.outputs.empty(),
                  "there is neither a loss nor an output");
  PIPESHARD_CHECK(!training.loss.valid() || elementCount(graph.shape(training.loss)) == 1,
                  "the loss is no scalar");
  for (const ModelOutput& output : training.outputs) {
    PIPESHARD_CHECK(output.axis < std::ssize(graph.shape(output.value)), "output '{}' has no axis {}",
                    graph.value(output.value).name, output.axis);
  }
  for (const Parameter& parameter : training.parameters) {
    PIPESHARD_CHECK(graph.initializers.contains(parameter.value), "parameter '{}' is no initializer",
                    graph.value(parameter.value).name);
    for (ValueId part : parameter.gradient_parts) verifySameType(graph, parameter.value, part);
    if (parameter.gradient_parts.empty()) continue;
    verifySameType(graph, parameter.value, parameter.gradient);
    verifySameType(graph, parameter.value, parameter.updated);
    for (const OptimizerState& state : parameter.states) {
      verifySameType(graph, state.value, state.updated);
      if (state.starts_as_parameter) verifySameType(graph, state.value, parameter.value);
    }
  }
  for (const PrologueTotal& total : training.totals) verifySameType(graph, total.part, total.total);
  PIPESHARD_CHECK(!training.loss_scale.valid() || (training.gradient_scale.valid() && training.clip_norm > 0),
                  "the loss is scaled, and its gradients are not scaled back");
  verifyForwardStates(training);
}

}  // namespace pipeshard
