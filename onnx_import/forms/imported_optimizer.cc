#include "onnx_import/forms/imported_optimizer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/forms/element_function.h"
#include "onnx_import/forms/joint_gradients.h"
#include "onnx_import/forms/optimizer_fit.h"
#include "onnx_import/forms/update_cone.h"
#include "onnx_import/prepare/inline_functions.h"

namespace pipeshard {
namespace {

// Which scalar is the step, which the learning rate.
struct ScalarRoles {
  ValueId step;
  ValueId learning_rate;
};

ScalarRoles rolesOf(const StepGraph& step, const CutFacts& facts, const UpdateCone& cone) {
  ScalarRoles roles;
  std::vector<ValueId> others;
  for (ValueId id : cone.scalars) {
    const Value& value = step.value(id);
    const bool counts = facts.counters.contains(id) || isInteger(value.data_type) ||
                        value.name.find("step") != std::string::npos;
    if (counts && !roles.step.valid()) {
      roles.step = id;
    } else {
      others.push_back(id);
    }
  }
  if (others.size() > 1)
    refuseUpdate(step.value(cone.parameter).name,
                 fmt::format("it reads {} and {}: only the learning rate and the step may be inputs",
                             describeValue(step.value(others[0])), describeValue(step.value(others[1]))));
  if (!others.empty()) roles.learning_rate = others.front();
  return roles;
}

FittedUpdate fit(const StepGraph& step, const UpdateCone& cone, const ScalarRoles& roles) {
  std::vector<ValueId> inputs = {cone.parameter, cone.gradient};
  inputs.insert(inputs.end(), cone.states.begin(), cone.states.end());
  for (ValueId scalar : {roles.step, roles.learning_rate}) {
    if (scalar.valid()) inputs.push_back(scalar);
  }
  Graph graph = extractSubgraph(step.graph(), "update", cone.nodes, inputs, cone.outputs);
  const ElementFunction update(std::move(graph), *step.value(cone.parameter).shape);
  return fitUpdate(update, {cone.states.size(), roles.step.valid(), roles.learning_rate.valid()});
}

// Whether a constant factor at the gradient that a momentum is made of belongs to the update: it is the
// learning rate where there is no other one, or what makes the momentum an average. Else it may as well be
// the end of the backward pass.
//   v' = 0.9 v - 0.2 g, p' = p + v'          v' = 0.9 v + 0.1 g, p' = p - 0.5 v'
bool isOfTheUpdate(const FittedUpdate& with_factor, const FittedUpdate& without,
                   bool learning_rate_is_input) {
  if (!with_factor.spec || !without.spec || with_factor.spec->momentum == 0) return false;
  if (!learning_rate_is_input && with_factor.spec->learning_rate == 1) return true;
  return std::abs(std::abs(without.gradient_weight) - (1 - without.spec->momentum)) < 1e-5;
}

class UpdatesFinder {
 public:
  UpdatesFinder(const StepGraph& step, const UpdatedParameters& updated,
                const std::map<ValueId, ValueId>& gradients)
      : step_(step), updated_(updated), gradients_(gradients) {
    std::vector<ValueId> parameters;
    for (const auto& [parameter, output] : updated) parameters.push_back(parameter);
    facts_ = cutFacts(step, parameters);
  }

  std::optional<ImportedUpdates> find() {
    for (const auto& [parameter, output] : updated_) {
      if (facts_.from_batch[output.index()]) addUpdate(parameter, output);
    }
    if (updates_.gradients.empty()) return std::nullopt;
    for (const auto& [leaf, output] : facts_.counters) {
      if (step_.value(leaf).name == updates_.optimizer.step || updates_.optimizer.step.empty())
        updates_.outputs.push_back(step_.value(output).name);
    }
    return std::move(updates_);
  }

 private:
  void addUpdate(ValueId parameter, ValueId output) {
    const auto known = gradients_.find(parameter);
    UpdateCone cone =
        updateCone(step_, facts_, parameter, output, known != gradients_.end() ? known->second : ValueId());
    const ScalarRoles roles = rolesOf(step_, facts_, cone);
    FittedUpdate fitted = fit(step_, cone, roles);
    if (auto inner = withoutFactor(step_, facts_, cone)) {
      FittedUpdate again = fit(step_, *inner, roles);
      if (isOfTheUpdate(fitted, again, roles.learning_rate.valid())) {
        cone = std::move(*inner);
        fitted = std::move(again);
      }
    }
    const std::string& name = step_.value(parameter).name;
    if (!fitted.spec) {
      refuseUpdate(name,
                   fmt::format("it is none of SGD, SGD with momentum, Adam and AdamW: {}", fitted.reason));
    }
    const bool first = updates_.gradients.empty();
    ImportedOptimizer& optimizer = updates_.optimizer;
    if (!first && !(optimizer.spec == *fitted.spec)) {
      refuseUpdate(name, fmt::format("it is {}, that of '{}' is {}, and one optimizer is for all weights",
                                     optimizerToString(*fitted.spec), updates_.gradients[0].parameter,
                                     optimizerToString(optimizer.spec)));
    }
    optimizer.spec = *fitted.spec;
    if (roles.step.valid()) optimizer.step = step_.value(roles.step).name;
    optimizer.first_step = fitted.first_step;
    if (roles.learning_rate.valid()) optimizer.learning_rate = step_.value(roles.learning_rate).name;
    updates_.gradients.push_back({name, step_.value(cone.gradient).name});
    if (!step_.graph().initializers.contains(parameter)) updates_.weight_inputs.push_back(name);
    for (ValueId id : cone.outputs) updates_.outputs.push_back(step_.value(id).name);
    addStates(cone, fitted);
  }

  void addStates(const UpdateCone& cone, const FittedUpdate& fitted) {
    const bool adam = isAdaptive(*fitted.spec);
    for (size_t k = 0; k < fitted.moments.size(); ++k) {
      const size_t place = fitted.moments[k];
      updates_.optimizer.states.push_back({step_.value(cone.parameter).name,
                                           !adam    ? "momentum"
                                           : k == 0 ? "first_moment"
                                                    : "second_moment",
                                           step_.value(cone.states[place]).name,
                                           step_.value(cone.outputs[1 + place]).name});
    }
  }

  const StepGraph& step_;
  const UpdatedParameters& updated_;
  const std::map<ValueId, ValueId>& gradients_;
  CutFacts facts_;
  ImportedUpdates updates_;
};

}  // namespace

UpdatedParameters updatedParameters(const StepGraph& step) {
  UpdatedParameters updated;
  for (ValueId output : step.graph().outputs) {
    const ValueId parameter = step.updatedLeaf(output);
    if (parameter.valid() && step.feedsLoss(parameter)) updated.emplace_back(parameter, output);
  }
  return updated;
}

std::optional<ImportedUpdates> findUpdates(const StepGraph& step, const UpdatedParameters& updated,
                                           const std::map<ValueId, ValueId>& gradients) {
  return UpdatesFinder(step, updated, gradients).find();
}

void leaveOutUpdates(Graph& graph, const StepGraph& step) {
  std::vector<ValueId> states;  // inputs that the loss does not depend on
  for (ValueId input : step.graph().inputs) {
    if (!step.feedsLoss(input)) states.push_back(input);
  }
  std::set<std::string> gone;
  for (ValueId output : step.graph().outputs) {
    const std::vector<bool> upstream = step.upstream({output});
    const bool of_state =
        std::any_of(states.begin(), states.end(), [&](ValueId id) -> bool { return upstream[id.index()]; });
    if (of_state || step.updatedLeaf(output).valid()) gone.insert(step.value(output).name);
  }
  std::erase_if(graph.outputs, [&](ValueId id) { return gone.contains(graph.value(id).name); });
  removeDeadCode(graph);
  const UseDef uses = computeUseDef(graph);
  std::erase_if(graph.inputs, [&](ValueId id) { return uses.consumers[id.index()].empty(); });
  removeDeadCode(graph);
}

void removeUpdates(Graph& graph, const ImportedUpdates& updates) {
  const auto isThere = [&](const ImportedGradient& gradient) {
    return findValue(graph, gradient.output).valid();
  };
  if (!std::all_of(updates.gradients.begin(), updates.gradients.end(), isThere))
    inlineFunctions(graph, ImportLimits().inlined_nodes);  // gradients inside of them
  const std::set<std::string> gone(updates.outputs.begin(), updates.outputs.end());
  std::erase_if(graph.outputs, [&](ValueId id) { return gone.contains(graph.value(id).name); });
  for (const ImportedGradient& gradient : updates.gradients) {
    const ValueId value = findValue(graph, gradient.output), parameter = findValue(graph, gradient.parameter);
    PIPESHARD_CHECK(value.valid(), "the gradient '{}' is not in the graph", gradient.output);
    graph.value(value).data_type = graph.dataType(parameter);
    graph.value(value).shape = graph.value(parameter).shape;
    graph.outputs.push_back(value);
  }
  markGradients(graph, updates.gradients);
  std::set<std::string> given = {updates.optimizer.step, updates.optimizer.learning_rate};
  for (const ImportedState& state : updates.optimizer.states) given.insert(state.value);
  removeDeadCode(graph);
  const UseDef uses = computeUseDef(graph);
  std::erase_if(graph.inputs, [&](ValueId id) {
    return given.contains(graph.value(id).name) && uses.consumers[id.index()].empty();
  });
  removeDeadCode(graph);
}

}  // namespace pipeshard
