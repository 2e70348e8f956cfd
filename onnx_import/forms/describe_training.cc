#include "onnx_import/forms/describe_training.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "onnx_import/autodiff/functions.h"
#include "onnx_import/autodiff/update.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/training_info.h"
#include "onnx_import/forms/combined_step.h"
#include "onnx_import/prepare/inline_functions.h"

namespace pipeshard {
namespace {

constexpr int kLeastOpset = 16;     // of the functions' bodies
constexpr int kLeastIrVersion = 7;  // of TrainingInfoProto
constexpr int kTrainingOpset = 1;

Constant zeros(DataType type, const Shape& shape) {
  return {type, shape, std::vector<std::byte>(byteCount(type, shape))};
}

class TrainingWriter {
 public:
  TrainingWriter(const Graph& model, const TrainingDescription& training)
      : model_(model),
        training_(training),
        recipe_(updateRecipe(training.optimizer)),
        algorithm_(info_.algorithm),
        builder_(info_.algorithm),
        initialization_(info_.initialization) {
    algorithm_.name = "training";
    algorithm_.opset_imports = model.opset_imports;
    algorithm_.opset_imports[std::string(kPipeshardDomain)] = 1;  // until its functions are inlined
    algorithm_.functions.push_back(
        makePipeshardFunction(recipe_.function, recipe_.overload, model.opset_imports.at("")));
    info_.initialization.name = "initialization";
    info_.initialization.opset_imports = model.opset_imports;
  }

  TrainingInfo write() {
    addGradients();
    addStep();
    for (size_t i = 0; i < parameters_.size(); ++i) addUpdate(parameters_[i], gradients_[i]);
    inlineFunctions(algorithm_, ImportLimits().inlined_nodes);
    algorithm_.functions.clear();
    nameApart();
    for (const auto& [variable, updated] : updates_)
      info_.update_binding.emplace_back(nameOf(variable), nameOf(updated));
    for (const auto& [variable, initial] : initial_)
      info_.initialization_binding.emplace_back(nameOf(variable), info_.initialization.value(initial).name);
    return std::move(info_);
  }

 private:
  const std::string& nameOf(ValueId id) const { return algorithm_.value(id).name; }

  // A value of the model.
  ValueId read(ValueId id) {
    const ValueId copy = builder_.addValue(model_.value(id).name, DataType::kUndefined, {});
    algorithm_.value(copy) = model_.value(id);
    of_model_.insert(copy);
    return copy;
  }

  void addGradients() {
    const ValueId loss = findValue(model_, training_.loss);
    if (!loss.valid()) fail(ErrorCode::kConfiguration, "the loss '{}' is not in the model", training_.loss);
    const std::vector<bool> before = valuesBefore(model_, {loss});
    std::vector<ValueId> inputs;
    std::vector<std::string> held;
    for (const std::string& name : training_.parameters) {
      const ValueId id = findValue(model_, name);
      if (!id.valid() || !model_.initializers.contains(id) || !before[id.index()])
        fail(ErrorCode::kConfiguration, "'{}' is no initializer that the loss '{}' depends on", name,
             training_.loss);
      parameters_.push_back(read(id));
      inputs.push_back(parameters_.back());
    }
    for (ValueId id : model_.inputs) {
      if (!before[id.index()] || model_.initializers.contains(id)) continue;
      held.push_back(model_.value(id).name);
      inputs.push_back(read(id));
    }
    for (const ValueId parameter : parameters_) gradients_.push_back(addLike(parameter, "gradient"));
    std::map<std::string, Attribute> attributes = {{"xs", training_.parameters}, {"y", training_.loss}};
    if (!held.empty()) attributes.emplace("zs", held);
    builder_.addNode(kTrainingDomain, "Gradient", inputs, gradients_, attributes);
  }

  ValueId addLike(ValueId parameter, const std::string& what) {
    const Value& value = algorithm_.value(parameter);  // until one is added
    return builder_.addValue(fmt::format("{}.{}", value.name, what), value.data_type, *value.shape);
  }

  // An initializer that is set to `updated` in every step, and to zeros before the first.
  ValueId addState(const std::string& name, DataType type, Shape shape) {
    const ValueId state = builder_.addConstant(name, zeros(type, shape));
    const ValueId size =
        initialization_.addConstant(name + ".shape", makeConstant<int64_t>({std::ssize(shape)}, shape));
    const ValueId initial = initialization_.addValue(name + ".initial", type, shape);
    initialization_.addNode("", "ConstantOfShape", {size}, {initial}, {{"value", zeros(type, {1})}});
    info_.initialization.outputs.push_back(initial);
    initial_.emplace_back(state, initial);
    return state;
  }

  void setTo(ValueId variable, ValueId updated) {
    updates_.emplace_back(variable, updated);
    algorithm_.outputs.push_back(updated);
  }

  bool usesMomentum() const { return recipe_.function == "SGDMomentum" && recipe_.overload.empty(); }

  // The count of steps: before this one for Momentum, with it for our functions.
  void addStep() {
    if (!recipe_.counts_steps && !usesMomentum()) return;
    const ValueId count = addState("step", DataType::kInt64, {});
    const ValueId one = builder_.addConstant("one", makeScalar(DataType::kInt64, 1));
    const ValueId next = builder_.addValue("step.updated", DataType::kInt64, {});
    builder_.addNode("", "Add", {count, one}, {next});
    setTo(count, next);
    step_ = usesMomentum() ? count : next;
  }

  ValueId number(const char* name, DataType type, double content) {
    return builder_.addConstant(name, makeScalar(type, content));
  }

  void addUpdate(ValueId parameter, ValueId gradient) {
    const OptimizerSpec spec =
        optimizerOf(algorithm_.value(parameter), training_.optimizer, training_.groups);
    const UpdateRecipe recipe = updateRecipe(spec);
    const ValueId updated = addLike(parameter, "updated");
    const DataType type = algorithm_.dataType(parameter);
    std::vector<ValueId> inputs = {parameter, gradient}, outputs = {updated};
    setTo(parameter, updated);
    for (const std::string& kind : recipe.states) {
      const std::string name = fmt::format("{}.{}", nameOf(parameter), kind);
      inputs.push_back(addState(name, type, *algorithm_.value(parameter).shape));
      outputs.push_back(addLike(parameter, kind + ".updated"));
      setTo(inputs.back(), outputs.back());
    }
    if (usesMomentum()) return addMomentum(parameter, spec, std::move(inputs), outputs);
    if (step_.valid()) inputs.push_back(step_);
    for (double content : recipe.hyperparameters) inputs.push_back(number("number", type, content));
    for (double content : recipe.schedule) inputs.push_back(number("number", DataType::kFloat64, content));
    const NodeId node =
        builder_.addNode(kPipeshardDomain, recipe.function, inputs, outputs, recipe.attributes);
    algorithm_.node(node).name = nameOf(parameter) + ".update";
    algorithm_.node(node).overload = recipe.overload;
  }

  // beta 1, so that all gradients weigh the same: v' = momentum v + g, as ours.
  void addMomentum(ValueId parameter, const OptimizerSpec& spec, std::vector<ValueId> inputs,
                   const std::vector<ValueId>& outputs) {
    const ValueId rate = number("learning_rate", algorithm_.dataType(parameter), spec.learning_rate);
    inputs.insert(inputs.begin(), {rate, step_});
    const NodeId node = builder_.addNode(kTrainingDomain, "Momentum", inputs, outputs,
                                         {{"alpha", static_cast<float>(spec.momentum)},
                                          {"beta", 1.0F},
                                          {"mode", std::string(spec.nesterov ? "nesterov" : "standard")},
                                          {"norm_coefficient", static_cast<float>(spec.weight_decay)}});
    algorithm_.node(node).name = nameOf(parameter) + ".update";
  }

  // The algorithm's own values are called as none of the model's.
  void nameApart() {
    std::set<std::string> taken;
    for (const Value& value : model_.values) taken.insert(value.name);
    for (const Value& value : algorithm_.values) taken.insert(value.name);
    for (size_t i = 0; i < algorithm_.values.size(); ++i) {
      Value& value = algorithm_.values[i];
      if (of_model_.contains(ValueId(i)) || !findValue(model_, value.name).valid()) continue;
      const std::string name = value.name;
      for (int k = 1; taken.contains(value.name); ++k) value.name = fmt::format("{}.{}", name, k);
      taken.insert(value.name);
    }
  }

  const Graph& model_;
  const TrainingDescription& training_;
  const UpdateRecipe recipe_;
  TrainingInfo info_;
  Graph& algorithm_;
  GraphBuilder builder_;
  GraphBuilder initialization_;
  std::vector<ValueId> parameters_, gradients_;
  ValueId step_;  // that updates read; invalid: none
  std::set<ValueId> of_model_;
  std::vector<std::pair<ValueId, ValueId>> updates_;  // initializer, new content
  std::vector<std::pair<ValueId, ValueId>> initial_;  // initializer, value of `initialization`
};

}  // namespace

void describeTraining(Graph& graph, const TrainingDescription& training) {
  PIPESHARD_CHECK(training.optimizer.kind != OptimizerSpec::Kind::kNone, "nothing is trained");
  if (training.parameters.empty()) fail(ErrorCode::kConfiguration, "the training names no parameter");
  if (readsWholeTensors(training.optimizer.kind)) {
    fail(ErrorCode::kConfiguration,
         "the optimizer {} cannot be described as training information: its update is no function of "
         "elements; "
         "export without --training-info",
         optimizerToString(training.optimizer));
  }
  const auto opset = graph.opset_imports.find("");
  if (opset == graph.opset_imports.end() || opset->second < kLeastOpset) {
    fail(ErrorCode::kConfiguration,
         "training is described in operators of opset {} or later; the model has {}", kLeastOpset,
         opset == graph.opset_imports.end() ? "none" : fmt::format("{}", opset->second));
  }
  Graph described = graph;
  described.opset_imports[kTrainingDomain] = kTrainingOpset;
  described.ir_version = std::max<int64_t>(described.ir_version, kLeastIrVersion);
  setTrainingInfo(described, {TrainingWriter(described, training).write()});
  graph = std::move(described);
}

}  // namespace pipeshard
