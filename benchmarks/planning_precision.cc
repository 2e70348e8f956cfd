#include "benchmarks/planning_precision.h"

#include <set>

#include <fmt/format.h>

namespace pipeshard {

TrainingGraph inMixedPrecision(TrainingGraph training, DataType type) {
  Graph& graph = training.graph;
  std::set<ValueId> kept;
  for (const Parameter& parameter : training.parameters) {
    for (const OptimizerState& state : parameter.states) kept.insert({state.value, state.updated});
  }
  for (size_t i = 0; i < graph.values.size(); ++i) {
    if (graph.values[i].data_type == DataType::kFloat32 && !kept.contains(ValueId(i)))
      graph.values[i].data_type = type;
  }
  const UseDef use = computeUseDef(graph);
  GraphBuilder builder(graph);
  for (Parameter& parameter : training.parameters) {
    if (!parameter.updated.valid()) continue;
    const std::string name = graph.value(parameter.value).name + ".master_weight";
    const Shape shape = graph.shape(parameter.value);
    OptimizerState master{"master_weight", builder.addValue(name, DataType::kFloat32, shape),
                          builder.addValue(name + ".updated", DataType::kFloat32, shape)};
    graph.inputs.push_back(master.value);
    graph.outputs.push_back(master.updated);
    Node& update = graph.node(use.producer[parameter.updated.index()]);
    update.inputs.push_back(master.value);
    update.outputs.push_back(master.updated);
    parameter.states.push_back(std::move(master));
  }
  return training;
}

}  // namespace pipeshard
