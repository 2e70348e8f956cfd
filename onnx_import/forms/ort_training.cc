#include "onnx_import/forms/ort_training.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/forms/joint_gradients.h"

namespace pipeshard {
namespace {

constexpr std::string_view kMicrosoft = "com.microsoft";
constexpr std::string_view kBufferEnd = "_grad.accumulation.buffer";
constexpr std::string_view kGradientEnd = "_grad";

bool isAccumulator(const Node& node) {
  return node.domain == kMicrosoft &&
         (node.op_type == "InPlaceAccumulatorV2" || node.op_type == "InPlaceAccumulator");
}

bool isOptimizer(const Node& node) {
  static const std::set<std::string_view> kOptimizers = {"AdamWOptimizer", "SGDOptimizerV2", "AdamOptimizer",
                                                         "LambOptimizer", "SGDOptimizer"};
  return node.domain == kMicrosoft && kOptimizers.contains(node.op_type);
}

// What --optimizer would say. The learning rate is an input of the file.
std::string optionOf(const Node& optimizer) {
  if (optimizer.op_type != "AdamWOptimizer") return "--optimizer sgd:lr=...";
  const float decay = optimizer.floatAttribute("weight_decay", 1e-2F);
  std::string text =
      fmt::format("--optimizer adamw:lr=...,beta1={},beta2={},eps={},weight_decay={}",
                  optimizer.floatAttribute("alpha", 0.9F), optimizer.floatAttribute("beta", 0.999F),
                  optimizer.floatAttribute("epsilon", 1e-8F), decay);
  if (optimizer.intAttribute("adam_mode", 0) != 0 && decay != 0)
    text += " (its adam_mode 1 takes the decay off after the step, and this one before)";
  if (optimizer.intAttribute("correct_bias", 1) == 0)
    text += " (which corrects the bias, this file does not)";
  return text;
}

// Files of which nothing can be taken.
void refuseParts(const Graph& graph) {
  const auto accumulators = std::count_if(graph.nodes.begin(), graph.nodes.end(), isAccumulator);
  for (const Node& node : graph.nodes) {
    if (node.domain == kMicrosoft && node.op_type == "YieldOp") {
      fail(
          ErrorCode::kBadModel,
          "{}: the file is a dump of ORTModule, whose loss is computed outside of it; export the module with "
          "its loss instead (torch.onnx.export of a module whose forward returns the loss), or without it "
          "and "
          "say --loss",
          describeNode(node));
    }
    if (!isOptimizer(node) || accumulators > 0) continue;
    if (graph.nodes.size() > 8) {
      fail(ErrorCode::kBadModel,
           "{}: a training graph of an older ONNX Runtime, with its optimizer as operators that pipeshard "
           "does "
           "not take; give the model that it was made from, with {}",
           describeNode(node), optionOf(node));
    }
    fail(ErrorCode::kBadModel,
         "{}: the file is the optimizer of ONNX Runtime's training artifacts alone, without a model; give "
         "their "
         "training_model.onnx, with {}",
         describeNode(node), optionOf(node));
  }
}

bool isWeightLike(const Graph& graph, const UseDef& uses, ValueId input) {
  const Value& value = graph.value(input);
  if (!isFloatingPoint(value.data_type) || !hasStaticType(value)) return false;
  if (namesParameter(value.name) || namesBuffer(value.name)) return true;
  std::vector<ValueId> shown = {input};
  for (size_t i = 0; i < shown.size(); ++i) {
    for (NodeId id : uses.consumers[shown[i].index()]) {
      const Node& node = graph.node(id);
      const OperatorFacts& facts = operatorFacts(node);
      for (size_t position = 0; position < node.inputs.size(); ++position) {
        if (node.inputs[position] == shown[i] && facts.layer_weights.contains(position)) return true;
      }
      if (facts.view != View::kNone && node.inputs[0] == shown[i]) shown.push_back(node.outputs[0]);
    }
  }
  return false;
}

class OrtReducer {
 public:
  explicit OrtReducer(Graph& graph) : graph_(graph), builder_(graph) {}

  OrtTraining reduce() {
    OrtTraining result;
    result.loss = graph_.value(graph_.outputs.at(0)).name;
    std::vector<ImportedGradient> gradients;
    std::set<ValueId> gone;
    for (const Node& node : graph_.nodes) {
      if (!isAccumulator(node)) continue;
      gradients.push_back(gradientOf(node));
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (i != 1 && node.inputs[i].valid()) gone.insert(node.inputs[i]);
      }
      gone.insert(node.outputs.begin(), node.outputs.end());
    }
    std::erase_if(graph_.nodes, isAccumulator);
    std::erase_if(graph_.outputs, [&](ValueId id) { return gone.contains(id); });
    for (const Node& node : graph_.nodes) {
      for (ValueId id : node.inputs) gone.erase(id);
    }
    std::erase_if(graph_.inputs, [&](ValueId id) { return gone.contains(id); });
    for (ImportedGradient& gradient : gradients) addOutput(gradient);
    markGradients(graph_, gradients);
    result.gradients = gradients.size();
    result.weight_inputs = weightInputs(gradients);
    removeDeadCode(graph_);
    return result;
  }

 private:
  ImportedGradient gradientOf(const Node& node) const {
    const std::string& buffer = graph_.value(node.inputs.at(0)).name;
    const std::string& gradient = graph_.value(node.inputs.at(1)).name;
    std::string parameter;
    if (buffer.ends_with(kBufferEnd)) {
      parameter = buffer.substr(0, buffer.size() - kBufferEnd.size());
    } else if (gradient.ends_with(kGradientEnd)) {
      parameter = gradient.substr(0, gradient.size() - kGradientEnd.size());
    }
    const std::optional<ValueId> id = builder_.find(parameter);
    const bool given =
        id && (graph_.initializers.contains(*id) ||
               std::find(graph_.inputs.begin(), graph_.inputs.end(), *id) != graph_.inputs.end());
    if (!given) {
      fail(ErrorCode::kBadModel,
           "{}: it adds '{}' to '{}', but no input or initializer is the weight '{}' that this is the "
           "gradient of",
           describeNode(node), gradient, buffer, parameter);
    }
    return {parameter, gradient};
  }

  // The gradient as an output; of several weights, one each.
  void addOutput(ImportedGradient& gradient) {
    ValueId value = *builder_.find(gradient.output);
    const ValueId parameter = *builder_.find(gradient.parameter);
    if (std::find(graph_.outputs.begin(), graph_.outputs.end(), value) != graph_.outputs.end()) {
      const ValueId copy =
          builder_.addValue(gradient.parameter + std::string(kGradientEnd), DataType::kUndefined, {});
      builder_.addNode("", "Identity", {value}, {copy});
      value = copy;
      gradient.output = graph_.value(copy).name;
    }
    graph_.value(value).data_type = graph_.dataType(parameter);
    graph_.value(value).shape = graph_.value(parameter).shape;
    graph_.outputs.push_back(value);
  }

  // The weights that have gradients, and those between or right before them that are read alike.
  std::vector<std::string> weightInputs(const std::vector<ImportedGradient>& gradients) const {
    const UseDef uses = computeUseDef(graph_);
    std::set<std::string> trained;
    for (const ImportedGradient& gradient : gradients) trained.insert(gradient.parameter);
    std::vector<std::string> result;
    for (ValueId id : graph_.inputs) {
      if (graph_.initializers.contains(id)) continue;
      if (trained.contains(graph_.value(id).name) || isWeightLike(graph_, uses, id))
        result.push_back(graph_.value(id).name);
    }
    return result;
  }

  Graph& graph_;
  GraphBuilder builder_;
};

}  // namespace

std::optional<OrtTraining> takeOrtTraining(Graph& graph) {
  refuseParts(graph);
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(), isAccumulator)) return std::nullopt;
  if (graph.outputs.empty()) fail(ErrorCode::kBadModel, "the training model has no outputs");
  return OrtReducer(graph).reduce();
}

std::vector<std::string> inputsLikeWeights(const Graph& graph) {
  const UseDef uses = computeUseDef(graph);
  std::vector<std::string> result;
  for (ValueId id : graph.inputs) {
    if (!graph.initializers.contains(id) && isWeightLike(graph, uses, id))
      result.push_back(graph.value(id).name);
  }
  return result;
}

}  // namespace pipeshard
