#include "onnx_import/autodiff/update.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/name_pattern.h"
#include "ir/graph/weight_role.h"
#include "ir/plan/moving_average.h"
#include "onnx_import/autodiff/parameters.h"

namespace pipeshard {
namespace {

// Clips gradients, by value or by the norm of all of them, and takes the scale of the loss out of them.
class Clipping {
 public:
  Clipping(BackwardBuilder& builder, const UpdateExtras& extras, ValueId scale)
      : builder_(builder), value_(extras.clip_value), scale_(scale) {}

  // What the update reads in place of the gradient.
  ValueId clipped(ValueId gradient) {
    if (value_ == 0 && !scale_.valid()) return gradient;
    const Graph& graph = builder_.graph();
    const DataType type = graph.dataType(gradient);
    if (scale_.valid()) gradient = add("Mul", gradient, {scaleOf(type)}, value_ == 0 ? "clipped" : "scaled");
    if (value_ == 0) return gradient;
    const ValueId low = builder_.scalar(type, -value_), high = builder_.scalar(type, value_);
    return add("Clip", gradient, {low, high}, "clipped");
  }

 private:
  ValueId add(std::string_view op_type, ValueId gradient, std::vector<ValueId> others,
              std::string_view suffix) {
    const Graph& graph = builder_.graph();
    const ValueId result =
        builder_.values().addValue(fmt::format("{}.{}", graph.value(gradient).name, suffix),
                                   graph.dataType(gradient), graph.shape(gradient));
    others.insert(others.begin(), gradient);
    builder_.addNode("", op_type, "", std::move(others), {result}, {});
    return result;
  }

  // The scale in that type.
  ValueId scaleOf(DataType type) {
    if (builder_.graph().dataType(scale_) == type) return scale_;
    const auto [found, is_new] = scales_.try_emplace(type);
    if (is_new) {
      const std::string name = fmt::format("{}.{}", builder_.graph().value(scale_).name, dataTypeName(type));
      found->second = builder_.values().addValue(name, type, {});
      builder_.addNode("", "Cast", "", {scale_}, {found->second}, {{"to", static_cast<int64_t>(type)}});
    }
    return found->second;
  }

  BackwardBuilder& builder_;
  const double value_;
  const ValueId scale_;
  std::map<DataType, ValueId> scales_;
};

void appendUpdate(BackwardBuilder& builder, const UpdateRecipe& recipe, ValueId step, ValueId gradient,
                  Parameter& parameter) {
  Graph& graph = builder.graph();
  const std::string name = graph.value(parameter.value).name;
  const DataType type = graph.dataType(parameter.value);
  const Shape shape = graph.shape(parameter.value);
  const auto add = [&](const std::string& suffix) {
    return builder.values().addValue(fmt::format("{}.{}", name, suffix), type, shape);
  };
  parameter.updated = add("updated");
  std::vector<ValueId> inputs = {parameter.value, gradient};
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

// The input of the update, and what the optimizer reads of it.
ValueId addGradient(BackwardBuilder& builder, Clipping& clipping, Parameter& parameter) {
  Graph& graph = builder.graph();
  parameter.gradient =
      builder.values().addValue(graph.value(parameter.value).name + ".gradient",
                                graph.dataType(parameter.value), graph.shape(parameter.value));
  graph.inputs.push_back(parameter.gradient);
  return clipping.clipped(parameter.gradient);
}

// Of what the parameter becomes, beside the optimizer's states.
void appendMovingAverage(BackwardBuilder& builder, double decay, Parameter& parameter) {
  Graph& graph = builder.graph();
  const std::string name = graph.value(parameter.value).name + "." + kMovingAverage;
  const DataType type = graph.dataType(parameter.value);
  const Shape shape = graph.shape(parameter.value);
  const ValueId average = builder.values().addValue(name, type, shape);
  const ValueId updated = builder.values().addValue(name + ".updated", type, shape);
  graph.inputs.push_back(average);
  graph.outputs.push_back(updated);
  parameter.states.push_back({kMovingAverage, average, updated, /*starts_as_parameter=*/true});
  const NodeId node =
      builder.addNode(kPipeshardDomain, "MovingAverage", "",
                      {average, parameter.updated, builder.scalar(type, decay)}, {updated}, {});
  graph.node(node).name = name;
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
    case Kind::kLamb:
    case Kind::kAdafactor:
    case Kind::kMuon:  // no one function: tensor_optimizers.cc
      recipe.counts_steps = true;
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

NamePattern patternOf(const ParameterGroup& group) {
  return NamePattern(fmt::format("--group '{}'", group.pattern), group.pattern);
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

OptimizerSpec optimizerOf(const Value& parameter, OptimizerSpec optimizer,
                          const std::vector<ParameterGroup>& groups) {
  ParameterGroup all;
  for (const ParameterGroup& group : groups) {
    if (isNamedBy(patternOf(group), parameter)) addGroup(group, all);
  }
  applyGroup(all, optimizer);
  return optimizer;
}

void appendUpdates(BackwardBuilder& builder, const OptimizerSpec& optimizer,
                   const std::vector<ParameterGroup>& groups, const UpdateExtras& extras,
                   TrainingGraph& training) {
  Graph& graph = builder.graph();
  training.loss_scaling = extras.loss_scaling;
  training.clip_norm = extras.clip_norm;
  if (training.loss_scale.valid() && training.clip_norm == 0)
    training.clip_norm = std::numeric_limits<double>::infinity();
  if (training.clip_norm > 0) builder.useFunction("SquareSum", "");
  if (training.loss_scale.valid() || (training.clip_norm > 0 && !std::isinf(training.clip_norm))) {
    training.gradient_scale = builder.values().addValue("gradient_scale", DataType::kFloat64, {});
    graph.inputs.push_back(training.gradient_scale);
  }
  Clipping clipping(builder, extras, training.gradient_scale);
  if (updateRecipe(optimizer).counts_steps) {
    training.step = builder.values().addValue("step", DataType::kInt64, {});
    graph.inputs.push_back(training.step);
  }
  for (Parameter& parameter : training.parameters) {
    if (parameter.gradient_parts.empty()) continue;
    const OptimizerSpec spec = optimizerOfShape(optimizerOf(graph.value(parameter.value), optimizer, groups),
                                                storedShape(graph.value(parameter.value)));
    const ValueId gradient = addGradient(builder, clipping, parameter);
    if (readsWholeTensors(spec.kind))
      appendTensorUpdate(builder, spec, training.step, gradient, parameter);
    else
      appendUpdate(builder, updateRecipe(spec), training.step, gradient, parameter);
    if (extras.ema > 0) appendMovingAverage(builder, extras.ema, parameter);
  }
}

std::vector<std::string> groupNotes(const Graph& graph, const std::vector<ParameterGroup>& groups) {
  constexpr size_t kMost = 12;  // names in a message
  std::vector<std::string> notes;
  const std::vector<ValueId> parameters = trainableParameters(graph);
  for (const ParameterGroup& group : groups) {
    const NamePattern pattern = patternOf(group);
    const auto count = std::count_if(parameters.begin(), parameters.end(),
                                     [&](ValueId id) { return isNamedBy(pattern, graph.value(id)); });
    if (count == 0) {
      std::vector<std::string> names;
      for (const ValueId id : parameters) names.push_back(allNames(graph.value(id)));
      names.resize(std::min(names.size(), kMost));
      fail(ErrorCode::kUsage, "--group '{}' is found in the name of no trained parameter; such names are {}",
           group.pattern, fmt::join(names, ", "));
    }
    notes.push_back(
        fmt::format("group '{}': {}, {}", group.pattern, counted(count, "parameter"), groupSettings(group)));
  }
  return notes;
}

std::vector<std::string> muonNotes(const Graph& graph, const OptimizerSpec& optimizer,
                                   const std::vector<ParameterGroup>& groups) {
  if (optimizer.kind != OptimizerSpec::Kind::kMuon) return {};
  int64_t matrices = 0, others = 0;
  for (const ValueId parameter : trainableParameters(graph)) {
    const OptimizerSpec spec = optimizerOfShape(optimizerOf(graph.value(parameter), optimizer, groups),
                                                storedShape(graph.value(parameter)));
    ++(spec.kind == OptimizerSpec::Kind::kMuon ? matrices : others);
  }
  return {
      fmt::format("muon updates {} parameters that are matrices, embeddings among them unless --group "
                  "'REGEX:muon=0' leaves them out; AdamW with lr={} the {} others",
                  matrices, optimizer.adam_rate, others)};
}

}  // namespace pipeshard
