#include "onnx_import/exporter/module_mode.h"

#include <algorithm>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "onnx_import/exporter/converter_traps.h"

namespace pipeshard {
namespace {

void requireMode(const Node& node, int version) {
  if (node.opset_version >= version) return;
  fail(ErrorCode::kBadModel,
       "{}: its opset, {}, has no training mode (--mode training); export the model with opset_version={} or "
       "more",
       describeNode(node), node.opset_version, version);
}

bool isTrue(const Graph& graph, ValueId value) {
  const Constant* constant = graph.constant(value);
  return constant != nullptr && !constant->bytes.empty() && constant->bytes[0] != std::byte{0};
}

// PyTorch's momentum of None (an average over all batches) is 0 in the call, and 1 in ONNX; InstanceNorm
// reads what is computed of its statistics.
bool movesStatistics(const Graph& graph, const Node& normalization) {
  constexpr size_t kMean = 3;
  return normalization.floatAttribute("momentum", 0.9f) != 1 &&
         graph.initializers.contains(normalization.inputs.at(kMean));
}

// A folded normalisation has no statistics left: training mode would leave it as it is.
void requireNormalizations(const Graph& graph) {
  constexpr size_t kMost = 4;
  const std::vector<std::string> folded = foldedNormalizations(graph);
  if (folded.empty()) return;
  fail(ErrorCode::kConfiguration,
       "--mode training: tf2onnx has folded the batch normalisations of this file into {}, so that they "
       "cannot follow batches; expected BatchNormalization operators; leave --mode out to train what the "
       "file has",
       listed(folded, kMost));
}

}  // namespace

// batch_norm(input, weight, bias, running_mean, running_var, training, momentum, ...)
bool losesTraining(const Node& node) {
  constexpr size_t kTraining = 5;
  if (!node.is("BatchNormalization") || node.intAttribute("training_mode", 0) != 0) return false;
  const ExportedCall call = exportedCall(node);
  if (!isCallOf(call, "batch_norm")) return false;
  const std::vector<std::string> arguments = argumentTexts(call);
  return arguments.size() > kTraining && arguments[kTraining] == "True";
}

ChangedModes setTrainingMode(Graph& graph) {
  ChangedModes changed;
  GraphBuilder builder(graph);
  ValueId yes;
  const bool tells = std::any_of(graph.nodes.begin(), graph.nodes.end(), losesTraining);
  for (Node& node : graph.nodes) {
    const bool is_idle = node.is("BatchNormalization") && node.intAttribute("training_mode", 0) == 0;
    if (is_idle && tells && !losesTraining(node)) {
      ++changed.in_evaluation;
    } else if (is_idle) {
      requireMode(node, 14);
      node.attributes["training_mode"] = int64_t{1};
      node.outputs.resize(3);
      for (const size_t statistic : {size_t{1}, size_t{2}}) {  // behind the scale and bias, mean and variance
        const Value state = graph.value(node.inputs.at(statistic + 2));
        node.outputs[statistic] =
            builder.addValue(state.name + ".updated", state.data_type, state.shape.value_or(Shape{}));
        graph.value(node.outputs[statistic]).shape = state.shape;
      }
      ++changed.normalizations;
      if (!movesStatistics(graph, node)) ++changed.standing;
    }
    if (!node.is("Dropout")) continue;
    const bool has_mode = node.inputs.size() > 2 && node.inputs[2].valid();
    if (has_mode && (graph.constant(node.inputs[2]) == nullptr || isTrue(graph, node.inputs[2]))) continue;
    requireMode(node, 12);
    if (!yes.valid())
      yes = builder.addConstant("training_mode", Constant{DataType::kBool, {}, {std::byte{1}}});
    node.inputs.resize(3);
    node.inputs[2] = yes;
    ++changed.dropouts;
  }
  if (changed.normalizations == 0) requireNormalizations(graph);
  return changed;
}

}  // namespace pipeshard
