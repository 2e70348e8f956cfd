#include "onnx_import/forms/training_info_form.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/forms/combined_step.h"
#include "onnx_import/forms/initial_content.h"
#include "onnx_import/forms/preview_optimizers.h"
#include "onnx_import/forms/update_cone.h"

namespace pipeshard {
namespace {

using Variables = std::map<ValueId, ValueId>;  // and what they are set to

constexpr size_t kMostShown = 6;

bool has(const std::vector<ValueId>& values, ValueId id) {
  return std::find(values.begin(), values.end(), id) != values.end();
}

// The output of a batch normalisation that is the next value of its running mean or variance.
bool isRunningStatistic(const Graph& graph, ValueId statistic, ValueId updated) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    if (!node.is("BatchNormalization")) return false;
    for (const size_t k : {1, 2}) {
      if (node.outputs.size() > k && node.outputs[k] == updated && node.inputs.size() > 2 + k &&
          node.inputs[2 + k] == statistic)
        return true;
    }
    return false;
  });
}

class InfoReducer {
 public:
  InfoReducer(const Graph& graph, const std::vector<TrainingInfo>& infos, const ReduceOptions& options,
              ReducedForm& reduced)
      : combined_(combineStep(graph, infos)),
        graph_(combined_.graph),
        options_(options),
        reduced_(reduced),
        initial_(combined_, infos) {
    for (ValueId id : graph.inputs) model_inputs_.insert(graph.value(id).name);
    for (ValueId id : graph.outputs) model_outputs_.insert(graph.value(id).name);
  }

  Graph reduce() {
    findLoss();
    sortVariables();
    try {
      takeUpdates();
    } catch (const Error& error) {
      if (!options_.optimizer_given) throw;
      reduced_.notes.push_back(error.message());
      updates_.reset();
    }
    explain();
    takeOut();
    for (ValueId id : trainableParameters(graph_)) mark(id, trained_.contains(name(id)) ? "yes" : "no");
    for (const std::string& weight : trained_) {
      if (const ValueId id = findValue(graph_, weight); id.valid()) mark(id, "yes");
    }
    return std::move(graph_);
  }

 private:
  const std::string& name(ValueId id) const { return graph_.value(id).name; }
  bool hasGradients() const { return !combined_.gradients.empty(); }

  void findLoss() {
    loss_ = combined_.loss;
    if (loss_.valid()) return;
    Graph look = graph_;
    for (const auto& [variable, updated] : combined_.updates) std::erase(look.outputs, updated);
    const StepGraph step(std::move(look), options_.loss);
    if (!step.loss().valid()) {
      fail(ErrorCode::kBadModel,
           "the TrainingInfoProto has neither a Gradient operator nor a loss (an output of one number): it "
           "cannot be seen what is trained; leave it out of the file, and say --loss and --optimizer");
    }
    loss_ = findValue(graph_, step.value(step.loss()).name);
  }

  // What update_binding sets: weights that the loss depends on, and what only updates read: states, counters.
  // The latter are no constants, so they become inputs.
  void sortVariables() {
    const std::vector<bool> before = valuesBefore(graph_, {loss_});
    for (const auto& [variable, updated] : combined_.updates) {
      if (before[variable.index()]) {
        if (variable != updated && !isRunningStatistic(graph_, variable, updated))
          weights_.emplace(variable, updated);
        continue;
      }
      states_.emplace(variable, updated);
      graph_.initializers.erase(variable);
      if (!has(graph_.inputs, variable)) graph_.inputs.push_back(variable);
    }
    for (const auto& [weight, updated] : weights_) {
      if (!hasGradients() || combined_.gradients.contains(weight)) trained_.insert(name(weight));
    }
  }

  // The step as it is looked at: its outputs are the loss and what is set.
  StepGraph stepToLookAt() const {
    Graph look = graph_;
    look.outputs = {loss_};
    for (const auto& [weight, updated] : weights_)  // also of one element: no constant
      look.value(weight).metadata.emplace_back(kTrainedMark, "yes");
    for (const Variables* variables : {&weights_, &states_}) {
      for (const auto& [variable, updated] : *variables) {
        if (!has(look.outputs, updated)) look.outputs.push_back(updated);
      }
    }
    lowerPreviewOptimizers(look);
    return StepGraph(std::move(look), name(loss_));
  }

  void takeUpdates() {
    const StepGraph step = stepToLookAt();
    if (!step.isOneElement(step.loss())) {
      fail(ErrorCode::kBadModel, "Gradient differentiates {}: pipeshard trains with a loss of one number",
           describeValue(step.value(step.loss())));
    }
    std::map<std::string, ValueId> ids;  // in the step that is looked at
    for (size_t i = 0; i < step.graph().values.size(); ++i)
      ids.emplace(step.graph().values[i].name, ValueId(i));
    UpdatedParameters updated;
    std::map<ValueId, ValueId> gradients;
    for (const auto& [weight, output] : weights_) {
      const auto leaf = ids.find(name(weight)), content = ids.find(name(output));
      if (leaf == ids.end() || content == ids.end())
        refuseUpdate(name(weight), "it is computed from constants alone");
      updated.emplace_back(leaf->second, content->second);
      if (!hasGradients()) continue;
      const auto gradient = combined_.gradients.find(weight);
      if (gradient == combined_.gradients.end())
        refuseUpdate(name(weight), "the loss depends on it, but no Gradient operator differentiates by it");
      const auto known = ids.find(name(gradient->second));
      if (known == ids.end()) refuseUpdate(name(weight), "it does not depend on its gradient");
      gradients.emplace(updated.back().first, known->second);
      refuseOtherWays(step, name(weight), updated.back().second, known->second);
    }
    try {
      updates_ = findUpdates(step, updated, gradients);
    } catch (const Error& error) {
      fail(error.code(), "{}{}", error.message(), previewOptimizerHint(graph_));
    }
    checkComplete();
    checkStates();
    checkStep(step);
  }

  // From the new weight back, everything must go through its gradient.
  static void refuseOtherWays(const StepGraph& step, const std::string& weight, ValueId updated,
                              ValueId gradient) {
    std::set<ValueId> seen = {updated};
    std::vector<ValueId> open = {updated};
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      const Node* node = step.producer(id);
      if (node == nullptr || id == gradient) continue;
      if (isGradient(*node)) {
        refuseUpdate(weight, fmt::format("it reads '{}', the gradient of another weight (clipped by the norm "
                                         "of all?), which pipeshard's optimizers do not do",
                                         step.value(id).name));
      }
      if (node->is("Clip"))
        refuseUpdate(weight, "the gradient is clipped, which pipeshard's optimizers do not do");
      if (step.feedsLoss(id))
        refuseUpdate(weight, fmt::format("it reads '{}' of the forward pass", step.value(id).name));
      for (ValueId input : node->inputs) {
        if (input.valid() && seen.insert(input).second) open.push_back(input);
      }
    }
  }

  void checkComplete() const {
    if (!updates_) {
      fail(ErrorCode::kBadModel,
           "the TrainingInfoProto sets no weight by a gradient of '{}' (--optimizer trains all the same)",
           name(loss_));
    }
    std::set<std::string> found;
    for (const ImportedGradient& gradient : updates_->gradients) found.insert(gradient.parameter);
    for (const auto& [weight, output] : weights_) {
      if (!found.contains(name(weight))) refuseUpdate(name(weight), "it does not depend on its gradient");
    }
  }

  // The states are those that the binding means, and start at 0.
  void checkStates() {
    std::vector<std::string> started;
    for (const ImportedState& state : updates_->optimizer.states) {
      const auto bound = states_.find(findValue(graph_, state.value));
      if (bound == states_.end()) {
        refuseUpdate(state.parameter,
                     fmt::format("it reads '{}', which update_binding does not set", state.value));
      }
      if (name(bound->second) != state.output) {
        refuseUpdate(state.parameter,
                     fmt::format("update_binding sets '{}' to '{}', but its new value is '{}'", state.value,
                                 name(bound->second), state.output));
      }
      if (!initial_.isZero(state.value)) started.push_back(state.value);
    }
    if (started.empty()) return;
    reduced_.notes.push_back(
        fmt::format("states of the optimizer start at 0, not with their content in the file: {}",
                    listed(started, kMostShown)));
  }

  void checkStep(const StepGraph& step) const {
    const ImportedOptimizer& optimizer = updates_->optimizer;
    const std::string& weight = updates_->gradients.front().parameter;
    if (states_.contains(findValue(graph_, optimizer.learning_rate))) {
      refuseUpdate(weight,
                   fmt::format("its learning rate '{}' changes from step to step", optimizer.learning_rate));
    }
    if (!isAdaptive(optimizer.spec) || !states_.contains(findValue(graph_, optimizer.step))) return;
    if (!cutFacts(step, {}).counters.contains(findValue(step.graph(), optimizer.step)))
      refuseUpdate(weight, fmt::format("its step '{}' does not become 1 more", optimizer.step));
    const std::optional<double> start = initial_.number(optimizer.step);
    if (!start || *start == optimizer.first_step) return;
    refuseUpdate(weight, fmt::format("its step '{}' starts at {}, but it is {} only from {} on{}",
                                     optimizer.step, *start, optimizerToString(optimizer.spec),
                                     optimizer.first_step, previewOptimizerHint(graph_)));
  }

  // Why it is this form, and what of it is not taken.
  void explain() {
    reduced_.found.form = ModelForm::kTrainingInfo;
    reduced_.loss = name(loss_);
    const std::string by = updates_ ? fmt::format("by {}, with which the file's numbers agree",
                                                  optimizerToString(updates_->optimizer.spec))
                                    : "by an update that is not taken";
    reduced_.found.why =
        fmt::format("TrainingInfoProto: {} of '{}', update_binding sets {} {}",
                    hasGradients() ? "Gradient operators give gradients" : "the algorithm computes gradients",
                    name(loss_), listed({trained_.begin(), trained_.end()}, kMostShown), by);
    if (updates_) reduced_.optimizer = updates_->optimizer;
    if (!options_.loss.empty() && options_.loss != reduced_.loss)
      note("the file's gradients are of '{}'; --loss takes '{}' in its place", reduced_.loss, options_.loss);
    std::vector<std::string> unused, made, untrained;
    std::set<std::string> read;
    if (updates_) {
      read = {updates_->optimizer.step};
      for (const ImportedState& state : updates_->optimizer.states) read.insert(state.value);
    }
    for (const auto& [variable, updated] : states_) {
      if (updates_ && !read.contains(name(variable))) unused.push_back(name(variable));
    }
    for (const auto& [weight, updated] : weights_) {
      if (!initial_.operatorFor(name(weight)).empty())
        made.push_back(fmt::format("{} ({})", name(weight), initial_.operatorFor(name(weight))));
    }
    for (const auto& [of, gradient] : combined_.gradients) {
      if (!trained_.contains(name(of))) untrained.push_back(name(of));
    }
    if (!unused.empty())
      note("update_binding also sets what no update reads, left out: {}", listed(unused, kMostShown));
    if (!untrained.empty())
      note("has a gradient in the file, but no update: not trained: {}", listed(untrained, kMostShown));
    if (!made.empty())
      note(
          "the file's initialization is not done: training starts with what the file has (--weights "
          "random:NAME_REGEX draws weights): {}",
          listed(made, kMostShown));
  }

  template <typename... Args>
  void note(fmt::format_string<Args...> text, Args&&... args) {
    reduced_.notes.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  // What the step computes beside the forward pass goes. Ids change.
  void takeOut() {
    const std::vector<bool> backward = dependOnGradients();
    std::vector<std::string> gone;
    std::vector<ValueId> kept;
    for (ValueId output : graph_.outputs) {
      const bool updates = isSet(output) && !model_outputs_.contains(name(output));
      if (!updates && !backward[output.index()]) kept.push_back(output);
      if (!updates && backward[output.index()]) gone.push_back(name(output));
    }
    if (!has(kept, loss_)) kept.push_back(loss_);
    for (ValueId output : kept) {
      if (output != loss_) reduced_.others.push_back(name(output));
    }
    graph_.outputs = std::move(kept);
    if (!gone.empty()) note("outputs that depend on gradients, left out: {}", listed(gone, kMostShown));
    std::set<std::string> state_names;
    for (const auto& [state, updated] : states_) state_names.insert(name(state));
    if (updates_ && !hasGradients()) removeUpdates(graph_, *updates_);
    for (int pass = 0; pass < 2; ++pass) {
      removeDeadCode(graph_);
      const UseDef uses = computeUseDef(graph_);
      std::erase_if(graph_.inputs, [&](ValueId id) {
        const bool added = !model_inputs_.contains(name(id)) || state_names.contains(name(id));
        return added && uses.consumers[id.index()].empty();
      });
    }
  }

  bool isSet(ValueId value) const {
    return std::any_of(combined_.updates.begin(), combined_.updates.end(),
                       [&](const auto& entry) { return entry.second == value; });
  }

  // By value.
  std::vector<bool> dependOnGradients() const {
    std::vector<bool> result(graph_.values.size(), false);
    for (const Node& node : graph_.nodes) {
      const bool any = isGradient(node) ||
                       std::any_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId id) -> bool { return id.valid() && result[id.index()]; });
      for (ValueId id : node.outputs) {
        if (any && id.valid()) result[id.index()] = true;
      }
    }
    return result;
  }

  void mark(ValueId id, const char* trained) {
    Metadata& metadata = graph_.value(id).metadata;
    std::erase_if(metadata, [](const auto& entry) { return entry.first == kTrainedMark; });
    metadata.emplace_back(kTrainedMark, trained);
  }

  CombinedStep combined_;
  Graph& graph_;  // the combined one
  const ReduceOptions& options_;
  ReducedForm& reduced_;
  const InitialContent initial_;
  std::set<std::string> model_inputs_, model_outputs_;
  ValueId loss_;
  Variables weights_;  // that the loss depends on
  Variables states_;   // that it does not
  std::set<std::string> trained_;
  std::optional<ImportedUpdates> updates_;
};

}  // namespace

bool reduceTrainingInfo(Graph& graph, const ReduceOptions& options, ReducedForm& reduced) {
  const std::vector<TrainingInfo> infos = trainingInfo(graph);
  if (infos.empty()) return false;
  Graph model = graph;
  setTrainingInfo(model, {});
  const bool trains = std::any_of(infos.begin(), infos.end(), [](const TrainingInfo& info) {
    return !info.algorithm.nodes.empty() || !info.update_binding.empty();
  });
  if (!trains) {
    graph = std::move(model);
    reduced.notes.emplace_back(
        "the file's TrainingInfoProto has no algorithm: its initialization is not done, training starts with "
        "what the file has");
    return false;
  }
  graph = InfoReducer(model, infos, options, reduced).reduce();
  return true;
}

}  // namespace pipeshard
