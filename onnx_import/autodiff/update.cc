#include "onnx_import/autodiff/update.h"

#include <fmt/format.h>

namespace pipeshard {
namespace {

void appendUpdate(BackwardBuilder& builder, const UpdateRecipe& recipe, ValueId step, Parameter& parameter) {
  Graph& graph = builder.graph();
  const std::string name = graph.value(parameter.value).name;
  const DataType type = graph.dataType(parameter.value);
  const Shape shape = graph.shape(parameter.value);
  const auto add = [&](const std::string& suffix) {
    return builder.values().addValue(fmt::format("{}.{}", name, suffix), type, shape);
  };
  parameter.gradient = add("gradient");
  graph.inputs.push_back(parameter.gradient);
  parameter.updated = add("updated");
  std::vector<ValueId> inputs = {parameter.value, parameter.gradient};
  std::vector<ValueId> outputs = {parameter.updated};
  for (const std::string& state : recipe.states) {
    const ValueId value = add(state);
    graph.inputs.push_back(value);
    parameter.states.push_back({state, value, add(state + ".updated")});
    inputs.push_back(value);
    outputs.push_back(parameter.states.back().updated);
  }
  if (step.valid()) inputs.push_back(step);
  for (double number : recipe.hyperparameters) inputs.push_back(builder.scalar(type, number));
  graph.outputs.insert(graph.outputs.end(), outputs.begin(), outputs.end());
  const NodeId node = builder.addNode(kPipeshardDomain, recipe.function, "", std::move(inputs),
                                      std::move(outputs), recipe.attributes);
  graph.node(node).name = fmt::format("{}.update", name);
}

}  // namespace

UpdateRecipe updateRecipe(const OptimizerSpec& optimizer) {
  if (optimizer.kind != OptimizerSpec::Kind::kSgd) {
    return {optimizer.kind == OptimizerSpec::Kind::kAdam ? "Adam" : "AdamW",
            {"first_moment", "second_moment"},
            true,
            {optimizer.learning_rate, optimizer.beta1, optimizer.beta2, optimizer.epsilon,
             optimizer.weight_decay},
            {}};
  }
  if (optimizer.momentum == 0)
    return {"SGD", {}, false, {optimizer.learning_rate, optimizer.weight_decay}, {}};
  return {"SGDMomentum",
          {"momentum"},
          false,
          {optimizer.learning_rate, optimizer.momentum, optimizer.weight_decay},
          {{"nesterov", int64_t{optimizer.nesterov}}}};
}

void appendUpdates(BackwardBuilder& builder, const OptimizerSpec& optimizer, TrainingGraph& training) {
  const UpdateRecipe recipe = updateRecipe(optimizer);
  Graph& graph = builder.graph();
  if (recipe.counts_steps) {
    training.step = builder.values().addValue("step", DataType::kInt64, {});
    graph.inputs.push_back(training.step);
  }
  for (Parameter& parameter : training.parameters) {
    if (!parameter.gradient_parts.empty()) appendUpdate(builder, recipe, training.step, parameter);
  }
}

}  // namespace pipeshard
