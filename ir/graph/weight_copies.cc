#include "ir/graph/weight_copies.h"

#include <algorithm>
#include <variant>

namespace pipeshard {
namespace {

// A parameter, or a weight in a file; not a number of the arithmetic, nor a running statistic.
bool isWeight(const TrainingGraph& training, ValueId value) {
  const auto initializer = training.graph.initializers.find(value);
  if (initializer == training.graph.initializers.end()) return false;
  const auto isState = [&](const ForwardState& state) { return state.value == value; };
  if (std::any_of(training.forward_states.begin(), training.forward_states.end(), isState)) return false;
  const auto isParameter = [&](const Parameter& parameter) { return parameter.value == value; };
  return !std::holds_alternative<Constant>(initializer->second) ||
         std::any_of(training.parameters.begin(), training.parameters.end(), isParameter);
}

}  // namespace

bool isWeightCopy(const TrainingGraph& training, NodeId id) {
  const Graph& graph = training.graph;
  const Node& node = graph.node(id);
  if (training.node_phase[id.index()] != Phase::kForward || !node.is("Cast")) return false;
  const ValueId weight = node.inputs[0], copy = node.outputs[0];
  const DataType from = graph.dataType(weight), to = graph.dataType(copy);
  return isFloatingPoint(from) && isFloatingPoint(to) && dataTypeSize(to) < dataTypeSize(from) &&
         isWeight(training, weight) &&
         std::find(graph.outputs.begin(), graph.outputs.end(), copy) == graph.outputs.end();
}

}  // namespace pipeshard
