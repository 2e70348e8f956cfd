#include "sharding/linearity.h"

#include <algorithm>
#include <set>
#include <string_view>

namespace pipeshard {

namespace {

// Linear in input 0, whatever the (unchanging) other inputs are.
bool isLinearInFirst(const Graph& graph, const Node& node) {
  static const std::set<std::string_view> kMoving = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose",
                                                     "Expand",   "Tile",    "Slice",   "Split",   "Gather",    "GatherElements",
                                                     "GatherND", "Trilu",   "Neg",     "CumSum",  "ReduceSum"};
  if (kMoving.contains(node.op_type)) return true;
  const bool floating = isFloatingPoint(graph.dataType(node.outputs[0]));
  if (node.op_type == "Div" || node.op_type == "ReduceMean") return floating;  // integer division rounds
  if (node.op_type == "Cast" || node.op_type == "CastLike") return floating && isFloatingPoint(graph.dataType(node.inputs[0]));
  if (node.op_type != "Dropout") return false;
  if (node.inputs.size() < 3 || !node.inputs[2].valid()) return true;
  const Constant* training = graph.constant(node.inputs[2]);
  return training != nullptr && numericElements(*training) == std::vector<double>{0};
}

bool isSum(const std::vector<bool>& sums, size_t input) { return input < sums.size() && sums[input]; }

}  // namespace

std::vector<size_t> additiveInputs(const Node& node) {
  if (!node.domain.empty()) return {};
  if (node.op_type == "Where") return {1, 2};
  static const std::set<std::string_view> kAdding = {"Add", "Sub", "Sum", "Mean", "Concat"};
  std::vector<size_t> positions;
  for (size_t input = 0; kAdding.contains(node.op_type) && input < node.inputs.size(); ++input) positions.push_back(input);
  return positions;
}

bool passesSums(const Graph& graph, const Node& node, const std::vector<bool>& sums) {
  if (!node.domain.empty()) return false;
  const auto count = std::count(sums.begin(), sums.end(), true);
  const std::vector<size_t> additive = additiveInputs(node);
  if (!additive.empty()) {
    const bool all = std::all_of(additive.begin(), additive.end(), [&](size_t input) { return isSum(sums, input); });
    return all && static_cast<size_t>(count) == additive.size() && !(node.is("Mean") && !isFloatingPoint(graph.dataType(node.outputs[0])));
  }
  if (node.op_type == "Mul" || node.op_type == "MatMul") return count == 1;
  if (node.op_type == "Gemm") {
    const bool has_c = node.inputs.size() > 2 && node.inputs[2].valid();
    return isSum(sums, 0) != isSum(sums, 1) && isSum(sums, 2) == has_c;
  }
  return count == 1 && isSum(sums, 0) && isLinearInFirst(graph, node);
}

}  // namespace pipeshard
