// What the family files share: the table of rules and a builder for one rule.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sharding/rules/factor_rule.h"

namespace pipeshard {

// FLOPs per element that rules count where an operator is no contraction. They rank operators; they do not
// time them.
inline constexpr double kViewFlops = 0;            // Reshape and the like: no data moves
inline constexpr double kMoveFlops = 1;            // a copy, a comparison, an addition
inline constexpr double kTranscendentalFlops = 8;  // Exp, Tanh, Erf, Pow, ...
inline constexpr double kNormalizationFlops = 8;   // a softmax or a normalisation over an axis
inline constexpr double kOptimizerFlops = 12;      // Adam's update of one element

using RuleFunction = std::optional<FactorRule> (*)(const Graph& graph, const Node& node);

// Rules keyed by (domain, operator). Filled by explicit calls, no static registration.
class RuleTable {
 public:
  void add(std::string_view domain, std::string_view op_type, RuleFunction function);
  void addAll(std::string_view domain, const std::vector<std::string_view>& op_types, RuleFunction function);
  RuleFunction find(const std::string& domain, const std::string& op_type) const;  // nullptr: none
  std::vector<std::pair<std::string, std::string>> operators() const;

 private:
  std::map<std::pair<std::string, std::string>, RuleFunction> functions_;
};

void registerElementwiseRules(RuleTable& table);
void registerMatmulRules(RuleTable& table);
void registerReductionRules(RuleTable& table);
void registerMovementRules(RuleTable& table);
void registerReshapeRules(RuleTable& table);
void registerNormalizationRules(RuleTable& table);
void registerAttentionRules(RuleTable& table);
void registerConvolutionRules(RuleTable& table);
void registerLossRules(RuleTable& table);
void registerGatherRules(RuleTable& table);

// Builds one rule. All axes start with an empty list; ids of factors are indices into FactorRule::factors.
class RuleBuilder {
 public:
  RuleBuilder(const Graph& graph, const Node& node);

  bool hasInput(size_t input) const { return input < node_.inputs.size() && node_.inputs[input].valid(); }
  bool hasOutput(size_t output) const {
    return output < node_.outputs.size() && node_.outputs[output].valid();
  }
  const Shape& inputShape(size_t input) const { return graph_.shape(node_.inputs[input]); }
  const Shape& outputShape(size_t output) const { return graph_.shape(node_.outputs[output]); }
  double inputElements(size_t input) const { return static_cast<double>(elementCount(inputShape(input))); }
  double outputElements(size_t output) const {
    return static_cast<double>(elementCount(outputShape(output)));
  }

  int factor(std::string name, int64_t size, FactorKind kind = FactorKind::kParallel);
  // One factor per axis, "a0", "a1", ... (or another prefix), all of one kind.
  std::vector<int> factorsOf(const Shape& shape, FactorKind kind = FactorKind::kParallel,
                             std::string_view prefix = "a");
  void setKind(int factor, FactorKind kind) { rule_.factors[factor].kind = kind; }

  // Absent inputs and outputs are passed over.
  void setInput(size_t input, size_t axis, std::vector<int> factors);
  void setOutput(size_t output, size_t axis, std::vector<int> factors);
  // Axis by axis, aligned at the last axis as broadcasting does; an axis of another size than its factor
  // stays empty.
  void alignInput(size_t input, const std::vector<int>& factors);
  void alignOutput(size_t output, const std::vector<int>& factors);

  void setAddedOnce(int factor, int input) { rule_.added_once = {factor, input}; }

  FactorRule build(double flops);

 private:
  void align(TensorFactors& tensor, const Shape& shape, const std::vector<int>& factors);
  const Graph& graph_;
  const Node& node_;
  FactorRule rule_;
};

// The elements of an integer input that is known before the first step, else nullopt.
std::optional<std::vector<int64_t>> constantInput(const Graph& graph, const Node& node, size_t input);

// Axes given by the attribute "axes" or, in newer opsets, by a constant input; normalised and sorted. An
// empty list when neither is there; nullopt when the input is not constant.
std::optional<std::vector<int>> axesOf(const Graph& graph, const Node& node, size_t axes_input, size_t rank);

}  // namespace pipeshard
