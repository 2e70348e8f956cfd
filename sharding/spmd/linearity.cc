#include "sharding/spmd/linearity.h"

#include <algorithm>

#include "ir/operators/operator_facts.h"

namespace pipeshard {

namespace {

using Positions = std::vector<int>;

bool given(const Node& node, int input) {
  return input >= 0 && input < std::ssize(node.inputs) && node.inputs[input].valid();
}

Positions positionsOf(const Node& node, InputSet set) {
  Positions positions;
  for (int input = 0; input < std::ssize(node.inputs); ++input) {
    if (set.contains(input)) positions.push_back(input);
  }
  return positions;
}

bool isZero(const Graph& graph, ValueId value) {
  const Constant* constant = graph.constant(value);
  if (constant == nullptr) return false;
  const std::vector<double> elements = numericElements(*constant);
  return std::all_of(elements.begin(), elements.end(), [](double element) { return element == 0; });
}

// Operators that are linear only for some types, attributes or inputs.
bool isLinearHere(const Graph& graph, const Node& node) {
  if (!node.domain.empty()) return true;
  const bool floating = isFloatingPoint(graph.dataType(node.outputs[0]));
  const bool divides = node.op_type == "Div" || node.op_type == "ReduceMean" || node.op_type == "Mean";
  if (divides) return floating;  // division of integers rounds
  if (node.op_type == "ScatterElements" || node.op_type == "ScatterND") {
    const std::string reduction = node.stringAttribute("reduction", "none");
    return reduction == "none" || reduction == "add";
  }
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
  const auto contains = [&](int input) { return std::find(sums.begin(), sums.end(), input) != sums.end(); };
  for (int sum : sums) {
    for (int input = 0; input < std::ssize(node.inputs); ++input) {
      if (node.inputs[input] == node.inputs[sum] && !contains(input)) return true;
    }
  }
  return false;
}

std::vector<Positions> allLinearInputs(const Graph& graph, const Node& node) {
  const OperatorFacts& facts = operatorFacts(node);
  const Positions together =
      positionsOf(node, facts.additive.empty() ? facts.linear_together : facts.additive);
  const Positions alone = positionsOf(node, facts.linear);
  if ((together.empty() && alone.empty()) || !isLinearHere(graph, node)) return {};
  if (!together.empty()) return {together};
  std::vector<Positions> sets;
  for (int input : alone) {
    if (!given(node, input)) continue;
    sets.push_back({input});
    // what is added once must be a sum as well
    if (given(node, facts.added_input)) sets.back().push_back(facts.added_input);
  }
  return sets;
}

}  // namespace

std::vector<int> additiveInputs(const Node& node) { return positionsOf(node, operatorFacts(node).additive); }

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
