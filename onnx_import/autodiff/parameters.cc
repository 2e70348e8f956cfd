// Which initializers are trained.
//
// The exporter of PyTorch 2 marks them (InputSpec.kind PARAMETER, beside BUFFER and CONSTANT_TENSOR). Without any mark:
// every floating-point initializer of more than one element is a parameter, unless
//   * only operators read it where a weight makes no sense: the choices of a Where, the limits of a Clip, Max or Min, the
//     exponent of a Pow, the value of a Pad, a Range, a comparison, the running statistics of a BatchNormalization, or
//   * it is held in memory and looks like an additive mask: it holds an infinity or a number beyond 1e4 in magnitude.
#include <algorithm>
#include <cmath>

#include "onnx_import/autodiff/training.h"

namespace pipeshard {
namespace {

constexpr std::string_view kKindSuffix = "InputSpec.kind";

bool isMarkedParameter(const Value& value) {
  return std::any_of(value.metadata.begin(), value.metadata.end(),
                     [](const auto& entry) { return entry.first.ends_with(kKindSuffix) && entry.second == "PARAMETER"; });
}

bool isWeightPosition(const Node& node, size_t input) {
  if (!node.domain.empty()) return true;
  if (node.op_type == "Pow") return input == 0;
  if (node.op_type == "BatchNormalization") return input < 3;
  for (const char* op_type : {"Where", "Clip", "Max", "Min", "Pad", "Range", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
                              "Resize", "Shape", "Size"}) {
    if (node.op_type == op_type) return false;
  }
  return true;
}

bool looksLikeMask(const Constant& constant) {
  if (constant.data_type != DataType::kFloat32 && constant.data_type != DataType::kFloat64) return false;
  const std::vector<double> elements = numericElements(constant);
  return std::any_of(elements.begin(), elements.end(), [](double x) { return !(std::abs(x) <= 1e4); });
}

std::vector<ValueId> guessParameters(const Graph& graph) {
  std::vector<bool> read_as_weight(graph.values.size(), false);
  for (const Node& node : graph.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.inputs[i].valid() && isWeightPosition(node, i)) read_as_weight[node.inputs[i].index()] = true;
    }
  }
  std::vector<ValueId> result;
  for (const auto& [id, initializer] : graph.initializers) {
    const Value& value = graph.value(id);
    if (!isFloatingPoint(value.data_type) || !read_as_weight[id.index()] || elementCount(*value.shape) <= 1) continue;
    const Constant* constant = std::get_if<Constant>(&initializer);
    if (constant == nullptr || !looksLikeMask(*constant)) result.push_back(id);
  }
  return result;
}

}  // namespace

std::vector<ValueId> trainableParameters(const Graph& graph) {
  std::vector<ValueId> marked;
  for (const auto& [id, initializer] : graph.initializers) {
    if (isMarkedParameter(graph.value(id)) && isFloatingPoint(graph.dataType(id))) marked.push_back(id);
  }
  return marked.empty() ? guessParameters(graph) : marked;
}

}  // namespace pipeshard
