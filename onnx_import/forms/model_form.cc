#include "onnx_import/forms/model_form.h"

#include <algorithm>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/forms/joint_gradients.h"
#include "onnx_import/forms/ort_training.h"
#include "onnx_import/forms/training_info_form.h"

namespace pipeshard {
namespace {

constexpr size_t kMostNamed = 6;

std::string whyUpdated(const ImportedUpdates& updates) {
  std::vector<std::string> names;
  for (const ImportedGradient& gradient : updates.gradients) names.push_back(gradient.parameter);
  const std::string& rate = updates.optimizer.learning_rate;
  return fmt::format("outputs are {} after an update by {}{}", listed(names, kMostNamed),
                     optimizerToString(updates.optimizer.spec),
                     rate.empty() ? "" : fmt::format(", with the learning rate from '{}'", rate));
}

std::string whyJoint(const JointGradients& found) {
  std::vector<std::string> outputs, parameters;
  for (const ImportedGradient& gradient : found.gradients) {
    outputs.push_back(gradient.output);
    parameters.push_back(gradient.parameter);
  }
  const std::string who = listed(outputs, kMostNamed), whose = listed(parameters, kMostNamed);
  return found.by_name
             ? fmt::format("outputs {} are called gradients of {}", who, whose)
             : fmt::format("outputs {} have the shapes of {} and follow from the loss's inputs", who, whose);
}

// The input that says what the gradient of the loss itself is ("tangents_1"): its shape is that of the loss,
// which does not depend on it, as every gradient does.
ValueId seedOf(const StepGraph& step, const JointGradients& found) {
  for (ValueId input : step.graph().inputs) {
    if (!step.isTensor(input) || step.feedsLoss(input) || !step.sameType(input, step.loss())) continue;
    const auto depends = [&](const ImportedGradient& gradient) -> bool {
      return step.upstream({findValue(step.graph(), gradient.output)})[input.index()];
    };
    if (std::all_of(found.gradients.begin(), found.gradients.end(), depends)) return input;
  }
  return {};
}

// A seed is 1.
void takeSeed(const StepGraph& step, const JointGradients& found, Graph& graph, ReducedForm& reduced) {
  const ValueId seed = seedOf(step, found);
  if (!seed.valid()) return;
  const std::string name = step.value(seed).name;
  const ValueId input = findValue(graph, name);
  std::erase(graph.inputs, input);
  Constant one = makeScalar(graph.dataType(input), 1);
  one.shape = *step.value(seed).shape;
  graph.initializers.emplace(input, std::move(one));
  markMade(graph.value(input));
  reduced.notes.push_back(fmt::format("the input '{}' is the gradient of the loss: taken as 1", name));
}

void reduceJoint(const StepGraph& step, Graph& graph, ReducedForm& reduced) {
  const JointGradients joint = findGradients(step);
  reduced.others = joint.others;
  if (joint.gradients.empty()) return;
  reduced.found.form = ModelForm::kForwardAndBackward;
  reduced.found.weight_inputs = joint.weight_inputs;
  reduced.found.why = whyJoint(joint);
  markGradients(graph, joint.gradients);
  takeSeed(step, joint, graph, reduced);
}

// Outputs that no form has taken.
void listOthers(const Graph& graph, ReducedForm& reduced) {
  for (ValueId output : graph.outputs) {
    const Value& value = graph.value(output);
    if (value.name != reduced.loss && metadataOf(value.metadata, kGradientMark).empty())
      reduced.others.push_back(value.name);
  }
}

bool reduceOptimizer(const StepGraph& step, const ReduceOptions& options, Graph& graph,
                     ReducedForm& reduced) {
  std::optional<ImportedUpdates> updates;
  std::string reason;
  try {
    updates = findUpdates(step, updatedParameters(step));
    if (!updates) return false;
  } catch (const Error& error) {
    if (!options.optimizer_given) throw;
    reason = error.message();
  }
  reduced.found.form = ModelForm::kOptimizerInside;
  reduced.loss = step.value(step.loss()).name;
  if (updates) {
    reduced.found.weight_inputs = updates->weight_inputs;
    reduced.found.why = whyUpdated(*updates);
    removeUpdates(graph, *updates);
    reduced.optimizer = updates->optimizer;
  } else {
    reduced.found.why = "outputs are weights after an update";
    reduced.notes.push_back(reason);
    leaveOutUpdates(graph, step);
    reduced.found.weight_inputs = inputsLikeWeights(graph);
  }
  listOthers(graph, reduced);
  return true;
}

void reduceOrt(const OrtTraining& training, const Graph& graph, ReducedForm& reduced) {
  reduced.found.form = ModelForm::kOrtTraining;
  reduced.found.weight_inputs = training.weight_inputs;
  reduced.found.why =
      fmt::format("{} to buffers (com.microsoft::InPlaceAccumulatorV2)",
                  training.gradients == 1 ? "1 gradient is added"
                                          : fmt::format("{} gradients are added", training.gradients));
  reduced.loss = training.loss;
  listOthers(graph, reduced);
  reduced.notes.emplace_back(
      "gradients of several batches are not added up (lazy_reset_grad): a step updates the weights with its "
      "own");
}

}  // namespace

std::string_view modelFormName(ModelForm form) {
  switch (form) {
    case ModelForm::kForward: return "forward pass";
    case ModelForm::kForwardWithLoss: return "forward pass with loss";
    case ModelForm::kForwardAndBackward: return "forward and backward pass";
    case ModelForm::kOrtTraining: return "ONNX Runtime training model";
    case ModelForm::kOptimizerInside: return "training step with its optimizer";
    case ModelForm::kTrainingInfo: return "forward pass with a TrainingInfoProto";
  }
  return "unknown";
}

ReducedForm reduceForm(Graph& graph, const ReduceOptions& options) {
  ReducedForm reduced;
  if (reduceTrainingInfo(graph, options, reduced)) return reduced;
  if (const std::optional<OrtTraining> training = takeOrtTraining(graph)) {
    reduceOrt(*training, graph, reduced);
    return reduced;
  }
  const StepGraph step(graph, options.loss);
  reduced.found.form = step.loss().valid() ? ModelForm::kForwardWithLoss : ModelForm::kForward;
  reduced.found.why = step.loss().valid() ? fmt::format("output {} is a scalar", step.value(step.loss()).name)
                                          : "no output is a floating-point scalar";
  if (step.loss().valid() && !reduceOptimizer(step, options, graph, reduced))
    reduceJoint(step, graph, reduced);
  const bool forward =
      reduced.found.form == ModelForm::kForward || reduced.found.form == ModelForm::kForwardWithLoss;
  if (forward && trainableParameters(graph).empty()) reduced.found.weight_inputs = inputsLikeWeights(graph);
  return reduced;
}

}  // namespace pipeshard
