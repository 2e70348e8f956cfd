#include "onnx_import/autodiff/update.h"

#include <fmt/format.h>

namespace pipeshard {
namespace {

struct Recipe {
  std::string function;
  std::vector<std::string> states;
  bool counts_steps = false;
  std::vector<double> hyperparameters;  // in the function's input order
  std::map<std::string, Attribute> attributes;
};

Recipe recipeOf(const OptimizerSpec& spec) {
  if (spec.kind != OptimizerSpec::Kind::kSgd) {
    return {spec.kind == OptimizerSpec::Kind::kAdam ? "Adam" : "AdamW",
            {"first_moment", "second_moment"},
            true,
            {spec.learning_rate, spec.beta1, spec.beta2, spec.epsilon, spec.weight_decay},
            {}};
  }
  if (spec.momentum == 0) return {"SGD", {}, false, {spec.learning_rate, spec.weight_decay}, {}};
  return {"SGDMomentum",
          {"momentum"},
          false,
          {spec.learning_rate, spec.momentum, spec.weight_decay},
          {{"nesterov", int64_t{spec.nesterov}}}};
}

void appendUpdate(BackwardBuilder& builder, const Recipe& recipe, ValueId step, Parameter& parameter) {
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

void appendUpdates(BackwardBuilder& builder, const OptimizerSpec& optimizer, TrainingGraph& training) {
  const Recipe recipe = recipeOf(optimizer);
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
