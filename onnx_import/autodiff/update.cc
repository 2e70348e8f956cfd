#include "onnx_import/autodiff/update.h"

#include <algorithm>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "onnx_import/autodiff/parameters.h"

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
  for (double number : recipe.schedule) inputs.push_back(builder.scalar(DataType::kFloat64, number));
  graph.outputs.insert(graph.outputs.end(), outputs.begin(), outputs.end());
  const NodeId node = builder.addNode(kPipeshardDomain, recipe.function, recipe.overload, std::move(inputs),
                                      std::move(outputs), recipe.attributes);
  graph.node(node).name = fmt::format("{}.update", name);
}

UpdateRecipe recipeOfKind(const OptimizerSpec& spec) {
  // States of different meanings have different names: a checkpoint of another optimizer is refused by them.
  using Kind = OptimizerSpec::Kind;
  const double rate = spec.learning_rate, decay = spec.weight_decay;
  UpdateRecipe recipe;
  switch (spec.kind) {
    case Kind::kAdam:
    case Kind::kAdamW:
      recipe.function = spec.kind == Kind::kAdam ? "Adam" : "AdamW";
      recipe.states = {"first_moment", "second_moment"};
      recipe.counts_steps = true;
      recipe.hyperparameters = {rate, spec.beta1, spec.beta2, spec.epsilon, decay};
      return recipe;
    case Kind::kRmsProp:
      recipe.function = "RMSProp";
      recipe.states = {"square_average"};
      recipe.hyperparameters = {rate, spec.alpha, spec.epsilon, decay};
      if (spec.momentum == 0) return recipe;
      recipe.function = "RMSPropMomentum";
      recipe.states.emplace_back("velocity");
      recipe.hyperparameters.push_back(spec.momentum);
      return recipe;
    case Kind::kAdagrad:
      recipe.function = "Adagrad";
      recipe.states = {"square_sum"};
      recipe.counts_steps = true;
      recipe.hyperparameters = {rate, spec.rate_decay, spec.epsilon, decay};
      return recipe;
    case Kind::kLion:
      recipe.function = "Lion";
      recipe.states = {"average"};
      recipe.hyperparameters = {rate, spec.beta1, spec.beta2, decay};
      return recipe;
    default: break;
  }
  recipe.function = "SGD";
  recipe.hyperparameters = {rate, decay};
  if (spec.momentum == 0) return recipe;
  recipe.function = "SGDMomentum";
  recipe.states = {"momentum"};
  recipe.hyperparameters = {rate, spec.momentum, decay};
  recipe.attributes = {{"nesterov", int64_t{spec.nesterov}}};
  return recipe;
}

std::regex patternOf(const ParameterGroup& group) {
  try {
    return std::regex(group.pattern, std::regex::ECMAScript);
  } catch (const std::regex_error& error) {
    fail(ErrorCode::kUsage, "--group '{}' is no regular expression: {}", group.pattern, error.what());
  }
}

}  // namespace

UpdateRecipe updateRecipe(const OptimizerSpec& optimizer) {
  UpdateRecipe recipe = recipeOfKind(optimizer);
  const LearningRateSchedule& schedule = optimizer.schedule;
  if (schedule.isFlat()) return recipe;
  recipe.counts_steps = true;
  recipe.overload = nameOf(schedule.kind);
  recipe.attributes.emplace("schedule", recipe.overload);
  for (double LearningRateSchedule::*number : numbersOf(schedule.kind))
    recipe.schedule.push_back(schedule.*number);
  return recipe;
}

OptimizerSpec optimizerOf(const std::string& parameter, OptimizerSpec optimizer,
                          const std::vector<ParameterGroup>& groups) {
  for (const ParameterGroup& group : groups) {
    if (std::regex_search(parameter, patternOf(group))) applyGroup(group, optimizer);
  }
  return optimizer;
}

void appendUpdates(BackwardBuilder& builder, const OptimizerSpec& optimizer,
                   const std::vector<ParameterGroup>& groups, TrainingGraph& training) {
  Graph& graph = builder.graph();
  if (updateRecipe(optimizer).counts_steps) {
    training.step = builder.values().addValue("step", DataType::kInt64, {});
    graph.inputs.push_back(training.step);
  }
  for (Parameter& parameter : training.parameters) {
    if (parameter.gradient_parts.empty()) continue;
    const OptimizerSpec spec = optimizerOf(graph.value(parameter.value).name, optimizer, groups);
    appendUpdate(builder, updateRecipe(spec), training.step, parameter);
  }
}

std::vector<std::string> groupNotes(const Graph& graph, const std::vector<ParameterGroup>& groups) {
  constexpr size_t kMost = 12;  // names in a message
  std::vector<std::string> notes, names;
  for (const ValueId parameter : trainableParameters(graph)) names.push_back(graph.value(parameter).name);
  for (const ParameterGroup& group : groups) {
    const std::regex pattern = patternOf(group);
    const auto count = std::count_if(names.begin(), names.end(), [&](const std::string& name) {
      return std::regex_search(name, pattern);
    });
    if (count == 0) {
      names.resize(std::min(names.size(), kMost));
      fail(ErrorCode::kUsage, "--group '{}' is found in the name of no trained parameter; such names are {}",
           group.pattern, fmt::join(names, ", "));
    }
    notes.push_back(
        fmt::format("group '{}': {}, {}", group.pattern, counted(count, "parameter"), groupSettings(group)));
  }
  return notes;
}

}  // namespace pipeshard
