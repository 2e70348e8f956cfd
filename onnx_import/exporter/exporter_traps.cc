#include "onnx_import/exporter/exporter_traps.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <set>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/graph/exporter_marks.h"
#include "ir/graph/lost_calls.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/exporter/detached_values.h"
#include "onnx_import/exporter/lost_parameters.h"
#include "onnx_import/exporter/module_mode.h"

namespace pipeshard {
namespace {

// avg_pool2d(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
bool losesDivisor(const Node& node, const ExportedCall& call) {
  constexpr size_t kDivisor = 6;
  if (!node.is("AveragePool") || !isCallOf(call, "avg_pool")) return false;
  const std::vector<std::string> arguments = argumentTexts(call);
  return arguments.size() > kDivisor && arguments[kDivisor] != "None";
}

// scaled_dot_product_attention(query, key, value, mask, dropout_p, ...)
bool isAttention(const ExportedCall& call) { return isCallOf(call, "scaled_dot_product_attention"); }
bool dropsInside(const ExportedCall& call) {
  constexpr size_t kDropout = 4;
  const std::vector<std::string> arguments = argumentTexts(call);
  return isAttention(call) && arguments.size() > kDropout &&
         std::strtod(arguments[kDropout].c_str(), nullptr) > 0;
}

// In inference mode, as far as the file tells.
bool isIdleDropout(const Graph& graph, const Node& node) {
  if (!node.is("Dropout")) return false;
  if (node.inputs.size() < 3 || !node.inputs[2].valid()) return true;
  const Constant* mode = graph.constant(node.inputs[2]);
  return mode != nullptr && !mode->bytes.empty() && mode->bytes[0] == std::byte{0};
}

struct Dropouts {
  int idle = 0;                            // not of attentions
  int in_attentions = 0;                   // idle, too
  std::map<std::string, bool> attentions;  // that drop, by call: whether the dropout is in the file
};

void tellDropouts(const Dropouts& found, std::vector<std::string>& traps) {
  if (found.in_attentions > 0) {
    traps.push_back(
        fmt::format("the dropout inside {} is not in the file (the exporter writes it in inference mode): "
                    "there nothing is dropped; --mode training drops",
                    counted(found.in_attentions, "attention")));
  }
  const auto gone = std::count_if(found.attentions.begin(), found.attentions.end(),
                                  [](const auto& attention) { return !attention.second; });
  if (gone > 0) {
    traps.push_back(
        fmt::format("the dropout inside {} is not in the file (the exporter's optimizer removes it): there "
                    "nothing is dropped; exported with {} it is there, and --mode training drops",
                    counted(gone, "attention"), exportLine()));
  }
  if (found.idle > 0) {
    traps.push_back(fmt::format("{} in inference mode, so that nothing is dropped; --mode training drops",
                                counted(found.idle, "dropout")));
  }
}

// With detach() and without it the file is the same.
void tellMerged(const Graph& graph, std::vector<std::string>& traps) {
  const std::vector<LostCall> lost_calls = lostCalls(graph);
  if (lost_calls.empty()) return;
  const std::vector<bool> trained = dependsOnParameters(graph);
  std::map<std::string, std::string> merged;  // the lost ones, and with which
  for (const LostCall& call : lost_calls) {
    if (call.is_merged && trained[call.value.index()]) merged.emplace(call.lost, call.kept);
  }
  if (merged.empty()) return;
  const auto& [lost, kept] = *merged.begin();
  traps.push_back(fmt::format(
      "{} that the exporter's optimizer has merged with equal ones ('{}' with '{}'{}): if the module "
      "detaches one of them the file does not say so, and its gradient passes; exported with {} it does",
      counted(merged.size(), "value"), lost, kept, merged.size() > 1 ? ", ..." : "", exportLine()));
}

// "Reverse.apply(x)" of a class, and not "layer.apply(f)" of an object.
bool appliesFunction(std::string_view code) {
  constexpr std::string_view kApply = ".apply(";
  for (size_t at = code.find(kApply); at != std::string_view::npos; at = code.find(kApply, at + 1)) {
    size_t begin = at;
    while (begin > 0 && (std::isalnum(static_cast<unsigned char>(code[begin - 1])) || code[begin - 1] == '_'))
      --begin;
    while (begin < at && code[begin] == '_') ++begin;
    if (begin < at && std::isupper(static_cast<unsigned char>(code[begin]))) return true;
  }
  return false;
}

// PyTorch's own functions have the derivatives of what they compute (checkpointing).
bool hasOwnBackward(const CodeLine& line) {
  if (line.file.find("/torch/") != std::string::npos) return false;
  return appliesFunction(line.code) || line.code.find(".register_hook(") != std::string::npos;
}

void tellOwnBackward(const Graph& graph, std::vector<std::string>& traps) {
  std::set<std::string> told;
  for (const Node& node : graph.nodes) {
    for (const CodeLine& line : linesOfCode(node)) {
      if (!hasOwnBackward(line) || !told.insert(line.code).second) continue;
      traps.push_back(
          fmt::format("a backward pass of the module's own is not in the file (a function's, or a hook's): "
                      "only the derivative of the forward pass is taken: {}",
                      line.code));
    }
  }
}

}  // namespace

bool isOfRuntimeOptimizer(const Graph& graph) { return graph.opset_imports.contains("com.microsoft.nchwc"); }

std::vector<std::string> exporterTraps(const Graph& graph) {
  int normalizations = 0, divisors = 0;
  Dropouts dropouts;
  std::vector<std::string> traps;
  for (const Node& node : graph.nodes) {
    const ExportedCall call = exportedCall(node);
    normalizations += losesTraining(node) ? 1 : 0;
    divisors += losesDivisor(node, call) ? 1 : 0;
    if (dropsInside(call))
      dropouts.attentions[call.name] = dropouts.attentions[call.name] || node.is("Dropout");
    if (isIdleDropout(graph, node)) ++(isAttention(call) ? dropouts.in_attentions : dropouts.idle);
  }
  if (normalizations > 0) {
    traps.push_back(
        fmt::format("{} of a module in training mode, but the exporter has written inference mode: the "
                    "running statistics of the file are used, and stay as they are, where PyTorch would take "
                    "the batch's; --mode training does so",
                    counted(normalizations, "batch normalization")));
  }
  if (divisors > 0) {
    traps.push_back(
        fmt::format("the divisor_override of {} is not in the file (the exporter drops it): they "
                    "divide by the size of the window; multiply their results in the module instead",
                    counted(divisors, "average pooling")));
  }
  tellDropouts(dropouts, traps);
  tellMerged(graph, traps);
  tellOwnBackward(graph, traps);
  if (isOfRuntimeOptimizer(graph) && signatureParameters(graph).empty()) {
    traps.emplace_back(
        "the file was written by ONNX Runtime's optimizer, which merges equal weights, takes tied ones apart "
        "and leaves no names: what is trained are the weights of this file, not the module's; plan the "
        "exporter's file instead");
  }
  return traps;
}

void refuseFakeQuantized(const Graph& graph, const std::vector<std::string>& train) {
  constexpr size_t kMostNames = 6;
  std::set<ValueId> codes;  // made by a QuantizeLinear
  std::vector<std::string> rounded;
  bool is_restored = false;
  for (const Node& node : graph.nodes) {
    const bool quantizes = node.op_type == "QuantizeLinear", restores = node.op_type == "DequantizeLinear";
    if (operatorFacts(node).is_quantized && !quantizes && !restores) return;
    if ((!quantizes && !restores) || node.inputs.empty() || node.outputs.empty()) continue;
    const ValueId input = node.inputs[0];
    if (restores && !codes.contains(input)) return;  // of codes that are stored, or given
    is_restored = is_restored || restores;
    if (!quantizes || !input.valid()) continue;
    codes.insert(node.outputs[0]);
    rounded.push_back(graph.value(input).name);
  }
  if (!is_restored || !train.empty()) return;
  fail(ErrorCode::kBadModel,
       "the module rounds {} in each pass (QuantizeLinear and DequantizeLinear): fake quantisation. PyTorch "
       "gives it a straight-through gradient, which the file does not have; rounding has none, so that what "
       "is behind it would not be trained. Export the module without it: without torch.fake_quantize_*, or "
       "model.apply(torch.ao.quantization.disable_fake_quant); a file that a tool has quantised: train the "
       "file it was made from. Or, to train what is around them: --train NAME_REGEX",
       listed(rounded, kMostNames));
}

std::vector<std::string> unreadInputs(const Graph& graph) {
  std::vector<bool> has_reader(graph.values.size()), is_read(graph.values.size());
  for (const ValueId output : graph.outputs) has_reader[output.index()] = is_read[output.index()] = true;
  for (const Node& node : graph.nodes) {
    for (const auto& [name, attribute] : node.attributes) {
      if (std::holds_alternative<std::shared_ptr<const Graph>>(attribute)) return {};
    }
    for (const ValueId input : node.inputs) {
      if (input.valid()) has_reader[input.index()] = true;
    }
  }
  // From the end: a node reads content where that of an output is read. What nothing reads may be read later.
  const auto gives = [&](ValueId output) {
    return output.valid() && (is_read[output.index()] || !has_reader[output.index()]);
  };
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    if (std::none_of(node->outputs.begin(), node->outputs.end(), gives)) continue;
    const InputSet unread = operatorFacts(*node).unread_inputs;
    for (size_t i = 0; i < node->inputs.size(); ++i) {
      if (node->inputs[i].valid() && !unread.contains(i)) is_read[node->inputs[i].index()] = true;
    }
  }
  std::vector<std::string> names;
  for (const ValueId input : graph.inputs) {
    if (!is_read[input.index()] && !graph.initializers.contains(input))
      names.push_back(graph.value(input).name);
  }
  return names;
}

}  // namespace pipeshard
