// The one table of linear operators: along time (passesSums) and along mesh axes (linearInputs).
#include "sharding/spmd/linearity.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

namespace pipeshard {

namespace {

using Positions = std::vector<int>;

bool given(const Node& node, int input) {
  return input < std::ssize(node.inputs) && node.inputs[input].valid();
}

// Linear in these inputs, each alone, whatever the (unchanging) other inputs are.
const std::map<std::string_view, Positions>& linearOneByOne(bool pipeshard_domain) {
  static const std::map<std::string_view, Positions> kStandard = [] {
    std::map<std::string_view, Positions> table = {{"Mul", {0, 1}}, {"MatMul", {0, 1}}};
    for (std::string_view op : {"Identity",
                                "Reshape",
                                "Flatten",
                                "Squeeze",
                                "Unsqueeze",
                                "Transpose",
                                "Expand",
                                "Tile",
                                "Slice",
                                "Split",
                                "Gather",
                                "GatherND",
                                "GatherElements",
                                "Trilu",
                                "Neg",
                                "CumSum",
                                "ReduceSum",
                                "AveragePool",
                                "GlobalAveragePool",
                                "ReduceMean",
                                "Div",
                                "Cast",
                                "CastLike",
                                "Dropout",
                                "Pad",
                                "NegativeLogLikelihoodLoss"})
      table[op] = {0};
    return table;
  }();
  static const std::map<std::string_view, Positions> kPipeshard = {{"ReluGrad", {0}},
                                                                   {"GeluGrad", {0}},
                                                                   {"MishGrad", {0}},
                                                                   {"SoftmaxGrad", {0}},
                                                                   {"LogSoftmaxGrad", {0}},
                                                                   {"LayerNormalizationInputGrad", {0, 2}},
                                                                   {"LayerNormalizationWeightGrad", {0}},
                                                                   {"GatherGrad", {0}},
                                                                   {"GatherElementsGrad", {0}},
                                                                   {"ConvInputGrad", {0, 1}},
                                                                   {"ConvWeightGrad", {0, 1}},
                                                                   {"MaxPoolGrad", {0}},
                                                                   {"AveragePoolGrad", {0}},
                                                                   {"BatchNormalizationInputGrad", {0, 2}},
                                                                   {"BatchNormalizationWeightGrad", {0}},
                                                                   {"SoftmaxCrossEntropyLossGrad", {0}}};
  return pipeshard_domain ? kPipeshard : kStandard;
}

bool isZero(const Graph& graph, ValueId value) {
  const Constant* constant = graph.constant(value);
  if (constant == nullptr) return false;
  const std::vector<double> elements = numericElements(*constant);
  return std::all_of(elements.begin(), elements.end(), [](double element) { return element == 0; });
}

// Operators of the table above that are linear only for some types, attributes or inputs.
bool isLinearHere(const Graph& graph, const Node& node) {
  if (!node.domain.empty()) return true;
  const bool floating = isFloatingPoint(graph.dataType(node.outputs[0]));
  if (node.op_type == "Div" || node.op_type == "ReduceMean") return floating;  // integer division rounds
  if (node.op_type == "Cast" || node.op_type == "CastLike")
    return floating && isFloatingPoint(graph.dataType(node.inputs[0]));
  if (node.op_type == "Pad") {
    if (node.stringAttribute("mode", "constant") != "constant") return true;
    return given(node, 2) ? isZero(graph, node.inputs[2]) : node.floatAttribute("value", 0) == 0;
  }
  if (node.op_type != "Dropout") return true;
  if (node.outputs.size() > 1 && node.outputs[1].valid()) return false;
  return !given(node, 2) || isZero(graph, node.inputs[2]);
}

// A value that stands at several positions is a sum at all of them or at none.
bool splitsAValue(const Node& node, const Positions& sums) {
  const auto contains = [&](size_t input) {
    return std::find(sums.begin(), sums.end(), static_cast<int>(input)) != sums.end();
  };
  for (int sum : sums) {
    for (size_t input = 0; input < node.inputs.size(); ++input) {
      if (node.inputs[input] == node.inputs[sum] && !contains(input)) return true;
    }
  }
  return false;
}

std::vector<Positions> allLinearInputs(const Graph& graph, const Node& node) {
  if (node.domain != "" && node.domain != kPipeshardDomain) return {};
  const std::vector<size_t> additive = additiveInputs(node);
  if (!additive.empty()) {
    if (node.is("Mean") && !isFloatingPoint(graph.dataType(node.outputs[0]))) return {};
    return {Positions(additive.begin(), additive.end())};
  }
  // what is added once must be a sum as well
  if (node.is("Gemm") || node.is("Conv") || node.is("ConvTranspose")) {
    if (given(node, 2)) return {{0, 2}, {1, 2}};
    return {{0}, {1}};
  }
  if (node.is("ScatterElements") || node.is("ScatterND")) {
    const std::string reduction = node.stringAttribute("reduction", "none");
    if (reduction == "none" || reduction == "add") return {{0, 2}};
    return {};
  }
  const auto& table = linearOneByOne(!node.domain.empty());
  const auto found = table.find(node.op_type);
  if (found == table.end() || !isLinearHere(graph, node)) return {};
  std::vector<Positions> sets;
  for (int input : found->second) {
    if (given(node, input)) sets.push_back({input});
  }
  return sets;
}

}  // namespace

std::vector<size_t> additiveInputs(const Node& node) {
  if (!node.domain.empty()) return {};
  if (node.op_type == "Where") return {1, 2};
  static const std::set<std::string_view> kAdding = {"Add", "Sub", "Sum", "Mean", "Concat"};
  std::vector<size_t> positions;
  for (size_t input = 0; kAdding.contains(node.op_type) && input < node.inputs.size(); ++input)
    positions.push_back(input);
  return positions;
}

std::vector<std::vector<int>> linearInputs(const Graph& graph, const Node& node) {
  std::vector<Positions> sets = allLinearInputs(graph, node);
  std::erase_if(sets, [&](const Positions& sums) { return splitsAValue(node, sums); });
  return sets;
}

bool passesSums(const Graph& graph, const Node& node, const std::vector<bool>& sums) {
  Positions positions;
  for (size_t input = 0; input < sums.size(); ++input) {
    if (sums[input]) positions.push_back(input);
  }
  const std::vector<Positions> sets = linearInputs(graph, node);
  return std::find(sets.begin(), sets.end(), positions) != sets.end();
}

}  // namespace pipeshard
