#include "sharding/pricing/kernel_memory.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace pipeshard {

namespace {

template <size_t N>
bool isOneOf(const Node& node, std::string_view domain, const std::array<std::string_view, N>& names) {
  return node.domain == domain && std::find(names.begin(), names.end(), node.op_type) != names.end();
}

}  // namespace

bool addsToResult(const Graph& graph, const Node& node) {
  if (node.is("Gemm")) return node.inputs.size() < 3 || !node.inputs[2].valid();
  if (node.domain == kPipeshardDomain && node.op_type == "GatherGrad") return true;
  const bool product = node.is("MatMul") || (node.domain == "com.microsoft" && node.op_type == "FusedMatMul");
  if (!product) return false;
  const Shape& result = graph.shape(node.outputs.at(0));
  return result.size() <= 2 ||
         std::all_of(result.begin(), result.end() - 2, [](int64_t size) { return size == 1; });
}

bool overwritesInput(const Node& node, size_t input) {
  constexpr std::array<std::string_view, 4> kBinary{"Add", "Sub", "Mul", "Div"};
  constexpr std::array<std::string_view, 11> kUnary{
      "Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Neg", "Reciprocal", "Erf", "Softmax", "LogSoftmax"};
  constexpr std::array<std::string_view, 4> kGradients{"ReluGrad", "GeluGrad", "SoftmaxGrad",
                                                       "LogSoftmaxGrad"};
  if (input == 0 && isOneOf(node, "", kUnary)) return true;
  return input < 2 && (isOneOf(node, "", kBinary) || isOneOf(node, kPipeshardDomain, kGradients));
}

int64_t kernelWorkspace(const Node& node, const std::vector<int64_t>& inputs, int64_t output, int64_t rows) {
  constexpr std::array<std::string_view, 2> kForward{"Conv", "ConvTranspose"};
  if (inputs.size() < 2) return 0;
  if (isOneOf(node, "", kForward) || (node.domain == kPipeshardDomain && node.op_type == "ConvInputGrad"))
    return inputs[1] + (inputs[0] + output) / std::max<int64_t>(1, rows);
  if (node.domain == kPipeshardDomain && node.op_type == "ConvWeightGrad")
    return inputs[1] + inputs[0] / std::max<int64_t>(1, rows) + output;
  return 0;
}

}  // namespace pipeshard
