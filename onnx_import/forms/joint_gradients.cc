#include "onnx_import/forms/joint_gradients.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/forms/gradient_pairing.h"

namespace pipeshard {
namespace {

constexpr size_t kMostListed = 12;

std::string describeAll(const StepGraph& step, const std::vector<ValueId>& values) {
  std::vector<std::string> names;
  for (ValueId id : values) names.push_back(describeValue(step.value(id)));
  return listed(names, kMostListed);
}

class GradientFinder {
 public:
  GradientFinder(const StepGraph& step, std::vector<ValueId> parameters)
      : step_(step), parameters_(std::move(parameters)), from_batch_(step.fromBatch()) {
    for (ValueId output : step.graph().outputs) {
      if (isLikeGradient(output)) gradients_.push_back(output);
    }
    pairing_ = pairGradients(step, gradients_, parameters_);
  }

  // Every parameter has a gradient, or several have, and what they are made of says whose they are.
  bool paired() const {
    if (pairing_.found != GradientPairing::Found::kPaired) return false;
    return gradients_.size() == parameters_.size() || (many() && 2 * pairing_.confirmed >= gradients_.size());
  }
  // Too many for a coincidence, but it cannot be said whose they are.
  bool ambiguous() const {
    if (paired() || pairing_.found == GradientPairing::Found::kNone || !many()) return false;
    return 2 * gradients_.size() >= parameters_.size() ||
           gradients_.size() + 1 == step_.graph().outputs.size();
  }

  std::vector<ImportedGradient> gradients() const {
    std::vector<ImportedGradient> result;
    for (size_t g = 0; g < gradients_.size(); ++g)
      result.push_back({step_.value(pairing_.parameter[g]).name, step_.value(gradients_[g]).name});
    return result;
  }

  [[noreturn]] void refuse() const {
    fail(ErrorCode::kBadModel,
         "the outputs {} look like gradients, but there are several ways to pair them with the weights {}. "
         "Call "
         "each output grad_<weight> (output_names of torch.onnx.export), or leave the gradients out: the "
         "backward pass is made anew anyway",
         describeAll(step_, gradients_), describeAll(step_, parameters_));
  }

 private:
  bool many() const { return gradients_.size() > 1; }

  bool isLikeGradient(ValueId output) const {
    if (!step_.isTensor(output) || step_.isLeaf(output) || output == step_.loss()) return false;
    if (!from_batch_[output.index()] || step_.updatedLeaf(output).valid()) return false;
    const Node& producer = *step_.producer(output);
    if (std::any_of(producer.outputs.begin(), producer.outputs.end(),
                    [&](ValueId id) { return id.valid() && step_.feedsLoss(id); }))
      return false;
    if (std::none_of(parameters_.begin(), parameters_.end(),
                     [&](ValueId parameter) { return step_.sameType(parameter, output); }))
      return false;
    return !dependsOnState(output);
  }

  // On a tensor of its shape that the loss does not depend on: running statistics, moments.
  bool dependsOnState(ValueId output) const {
    const std::vector<bool> upstream = step_.upstream({output});
    for (size_t i = 0; i < upstream.size(); ++i) {
      const ValueId id(i);
      const bool given = upstream[i] && step_.isLeaf(id) && !step_.feedsLoss(id);
      if (given && step_.isTensor(id) && !isFolded(step_.value(id)) && step_.sameType(id, output) &&
          !step_.value(output).shape->empty())
        return true;
    }
    return false;
  }

  const StepGraph& step_;
  std::vector<ValueId> parameters_;
  std::vector<bool> from_batch_;
  std::vector<ValueId> gradients_;
  GradientPairing pairing_;
};

void addOthers(const StepGraph& step, JointGradients& found) {
  std::set<std::string> known;
  for (const ImportedGradient& gradient : found.gradients) known.insert(gradient.output);
  if (step.loss().valid()) known.insert(step.value(step.loss()).name);
  for (ValueId output : step.graph().outputs) {
    if (!known.contains(step.value(output).name)) found.others.push_back(step.value(output).name);
  }
}

bool isInput(const StepGraph& step, const std::string& name) {
  const Graph& graph = step.graph();
  return std::any_of(graph.inputs.begin(), graph.inputs.end(), [&](ValueId id) {
    return graph.value(id).name == name && !graph.initializers.contains(id);
  });
}

}  // namespace

JointGradients findGradients(const StepGraph& step) {
  JointGradients found;
  if (!step.loss().valid()) return found;
  const std::vector<ValueId> initializers = step.trainedInitializers();
  found.gradients = namedGradients(step.graph(), initializers.empty());
  found.by_name = !found.gradients.empty();
  if (!found.by_name) {
    const GradientFinder of_initializers(step, initializers);
    const GradientFinder of_inputs(step, step.tensorInputs());
    const GradientFinder& chosen =
        !of_initializers.paired() && of_inputs.paired() ? of_inputs : of_initializers;
    if (chosen.paired()) {
      found.gradients = chosen.gradients();
    } else if (of_initializers.ambiguous()) {
      of_initializers.refuse();
    } else if (of_inputs.ambiguous() && initializers.empty()) {
      of_inputs.refuse();
    }
  }
  for (const ImportedGradient& gradient : found.gradients) {
    if (isInput(step, gradient.parameter)) found.weight_inputs.push_back(gradient.parameter);
  }
  addOthers(step, found);
  return found;
}

void markGradients(Graph& graph, const std::vector<ImportedGradient>& gradients) {
  for (const ImportedGradient& gradient : gradients) {
    const ValueId output = findValue(graph, gradient.output);
    PIPESHARD_CHECK(output.valid(), "no output '{}'", gradient.output);
    Metadata& metadata = graph.value(output).metadata;
    std::erase_if(metadata, [](const auto& entry) { return entry.first == kGradientMark; });
    metadata.emplace_back(kGradientMark, gradient.parameter);
  }
}

}  // namespace pipeshard
