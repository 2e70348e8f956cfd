// Attention and its gradients. Heads and examples are independent. So are queries, and heads that share keys,
// but for what the gradients of keys and values sum over. Keys are whole: a softmax runs over them.
#include <algorithm>

#include "ir/operators/attention_form.h"
#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

// Scores and the sums of their exponentials, without products.
constexpr double kScoreFlops = kNormalizationFlops + kMoveFlops;

struct AttentionFactors {
  std::vector<int> rows;  // of [.., queries]
  int keys = -1, width = -1, value_width = -1;
  bool is_grouped = false;  // the last axis before the matrices is 1 in K and V

  std::vector<int> with(int last) const {
    std::vector<int> factors = rows;
    factors.push_back(last);
    return factors;
  }
  std::vector<int> ofKeys(int last) const {
    std::vector<int> factors(rows.begin(), rows.end() - 1);
    if (is_grouped) factors.back() = kNone;
    factors.insert(factors.end(), {keys, last});
    return factors;
  }
  static constexpr int kNone = -1;
};

// Factors in every axis that has them, also where their size is 1.
void setAll(RuleBuilder& builder, bool input, size_t position, const std::vector<int>& factors) {
  for (size_t axis = 0; axis < factors.size(); ++axis) {
    if (factors[axis] == AttentionFactors::kNone) continue;
    if (input) builder.setInput(position, axis, {factors[axis]});
    if (!input) builder.setOutput(position, axis, {factors[axis]});
  }
}

// `queries`: the kind of what gradients of keys and values sum over: queries, and heads that share keys.
AttentionFactors setInputs(RuleBuilder& builder, const AttentionForm& form, FactorKind queries) {
  const Shape& query = builder.inputShape(form.query);
  AttentionFactors f;
  f.is_grouped = isGrouped(query, builder.inputShape(form.key()));
  for (size_t axis = 0; axis + 2 < query.size(); ++axis) {
    const bool is_group = f.is_grouped && axis + 3 == query.size();
    f.rows.push_back(
        builder.factor(fmt::format("b{}", axis), query[axis], is_group ? queries : FactorKind::kParallel));
  }
  f.rows.push_back(builder.factor("i", query[query.size() - 2], queries));
  f.keys = builder.factor("j", *(builder.inputShape(form.key()).rbegin() + 1), FactorKind::kWhole);
  f.width = builder.factor("d", query.back(), FactorKind::kWhole);
  f.value_width = builder.factor("e", builder.inputShape(form.value()).back(), FactorKind::kWhole);
  setAll(builder, true, form.query, f.with(f.width));
  setAll(builder, true, form.key(), f.ofKeys(f.width));
  setAll(builder, true, form.value(), f.ofKeys(f.value_width));
  for (const int overlay : {form.mask, form.bias, form.second_bias, form.keep}) {
    if (overlay >= 0) builder.alignInput(overlay, f.with(f.keys));
  }
  if (form.query == 0) return f;
  setAll(builder, true, 0, f.with(f.value_width));
  for (const size_t statistic : {1, 2}) setAll(builder, true, statistic, f.rows);
  return f;
}

// So many products of queries and keys over the width of a head, and over that of values.
double attentionFlops(const RuleBuilder& builder, const AttentionForm& form, double products,
                      double value_products) {
  const double width = static_cast<double>(builder.inputShape(form.query).back());
  const double value_width = static_cast<double>(builder.inputShape(form.value()).back());
  const auto keys = static_cast<double>(*(builder.inputShape(form.key()).rbegin() + 1));
  const double scores = builder.inputElements(form.query) / std::max(1.0, width) * keys;
  return scores * (2 * (products * width + value_products * value_width) + kScoreFlops);
}

std::optional<FactorRule> attentionRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const AttentionForm form = attentionForm(node);
  const AttentionFactors f = setInputs(builder, form, FactorKind::kParallel);
  setAll(builder, false, 0, f.with(f.value_width));
  for (const size_t statistic : {1, 2}) setAll(builder, false, statistic, f.rows);
  return builder.build(attentionFlops(builder, form, 1, 1));
}

// -> dQ, dK, dV: three products and two, since the scores are computed again.
std::optional<FactorRule> attentionGradRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const AttentionForm form = attentionForm(node);
  const AttentionFactors f = setInputs(builder, form, FactorKind::kWhole);
  setAll(builder, false, 0, f.with(f.width));
  setAll(builder, false, 1, f.ofKeys(f.width));
  setAll(builder, false, 2, f.ofKeys(f.value_width));
  return builder.build(attentionFlops(builder, form, 3, 2));
}

// -> dScores
std::optional<FactorRule> attentionScoresGradRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const AttentionForm form = attentionForm(node);
  const AttentionFactors f = setInputs(builder, form, FactorKind::kParallel);
  setAll(builder, false, 0, f.with(f.keys));
  return builder.build(attentionFlops(builder, form, 1, 1));
}

}  // namespace

void registerAttentionRules(RuleTable& table) {
  table.add(kPipeshardDomain, "Attention", attentionRule);
  table.add(kPipeshardDomain, "AttentionGrad", attentionGradRule);
  table.add(kPipeshardDomain, "AttentionScoresGrad", attentionScoresGradRule);
}

}  // namespace pipeshard
