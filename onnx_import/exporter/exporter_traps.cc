#include "onnx_import/exporter/exporter_traps.h"

#include <cstdlib>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/graph/exporter_marks.h"

namespace pipeshard {
namespace {

// "%x, [1, 2], None, 0.1" -> "%x", "[1, 2]", "None", "0.1"
std::vector<std::string> argumentsOf(const std::string& text) {
  std::vector<std::string> arguments(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      arguments.emplace_back();
    } else if (c != ' ' || depth > 0) {
      arguments.back() += c;
    }
  }
  return arguments;
}

// batch_norm(input, weight, bias, running_mean, running_var, training, momentum, ...)
bool losesTraining(const Node& node, const ExportedCall& call) {
  constexpr size_t kTraining = 5;
  if (!node.is("BatchNormalization") || node.intAttribute("training_mode", 0) != 0 ||
      call.function.find("batch_norm") == std::string::npos)
    return false;
  const std::vector<std::string> arguments = argumentsOf(call.text);
  return arguments.size() > kTraining && arguments[kTraining] == "True";
}

// cross_entropy_loss(input, target, weight, reduction, ignore_index, label_smoothing)
bool losesSmoothing(const Node& node, const ExportedCall& call) {
  constexpr size_t kSmoothing = 5;
  if (!node.is("SoftmaxCrossEntropyLoss") || call.function.find("cross_entropy_loss") == std::string::npos)
    return false;
  const std::vector<std::string> arguments = argumentsOf(call.text);
  return arguments.size() > kSmoothing && std::strtod(arguments[kSmoothing].c_str(), nullptr) > 0;
}

// scaled_dot_product_attention(query, key, value, mask, dropout_p, ...): its Dropout without training mode.
bool losesDropout(const Node& node, const ExportedCall& call) {
  const bool training = node.inputs.size() > 2 && node.inputs[2].valid();
  return node.is("Dropout") && !training &&
         call.function.find("scaled_dot_product_attention") != std::string::npos;
}

}  // namespace

std::vector<std::string> exporterTraps(const Graph& graph) {
  int normalizations = 0;
  int attentions = 0;
  bool smoothing = false;
  for (const Node& node : graph.nodes) {
    const ExportedCall call = exportedCall(node);
    if (call.name.empty()) continue;
    normalizations += losesTraining(node, call) ? 1 : 0;
    attentions += losesDropout(node, call) ? 1 : 0;
    smoothing = smoothing || losesSmoothing(node, call);
  }
  std::vector<std::string> traps;
  if (normalizations > 0) {
    traps.push_back(
        fmt::format("{} of a module in training mode, but the exporter has written inference mode: the "
                    "running statistics of "
                    "the file are used, and stay as they are, where PyTorch would take the batch's; --mode "
                    "training does so",
                    counted(normalizations, "batch normalization")));
  }
  if (attentions > 0) {
    traps.push_back(
        fmt::format("the dropout inside {} is not in the file (the exporter writes it in inference mode): "
                    "there nothing is dropped; --mode training drops",
                    counted(attentions, "attention")));
  }
  if (smoothing) {
    traps.emplace_back(
        "the label_smoothing of the cross-entropy is not in the file (the exporter drops it): the loss is "
        "without; --loss cross-entropy:LOGITS,LABELS,smoothing=0.1 has it");
  }
  // Every file that a session saves imports this domain.
  if (graph.opset_imports.contains("com.microsoft.nchwc") && signatureParameters(graph).empty()) {
    traps.emplace_back(
        "the file was written by ONNX Runtime's optimizer, which merges equal weights, takes tied ones apart "
        "and leaves no names: what is trained are the weights of this file, not the module's; plan the "
        "exporter's file instead");
  }
  return traps;
}

}  // namespace pipeshard
