// Contractions.
#include <algorithm>

#include "ir/operators/fused_projection.h"
#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

double contractionFlops(const std::vector<int64_t>& sizes) {
  double flops = 2;
  for (int64_t size : sizes) flops *= static_cast<double>(size);
  return flops;
}

// [b.., i, k] x [b.., k, j] -> [b.., i, j]; an operand of rank 1 lacks i or j.
std::optional<FactorRule> matMulRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& a = builder.inputShape(0);
  const Shape& b = builder.inputShape(1);
  const Shape& y = builder.outputShape(0);
  const bool has_i = a.size() > 1;
  const bool has_j = b.size() > 1;
  const size_t batch_rank = y.size() - (has_i ? 1 : 0) - (has_j ? 1 : 0);
  std::vector<int> row;
  for (size_t axis = 0; axis < batch_rank; ++axis)
    row.push_back(builder.factor(fmt::format("b{}", axis), y[axis]));
  std::vector<int> left = row;
  std::vector<int> right = row;
  double flops = builder.outputElements(0);
  if (has_i) {
    const int i = builder.factor("i", a[a.size() - 2]);
    left.push_back(i);
    row.push_back(i);
  }
  const int k = builder.factor("k", a.back(), FactorKind::kSum);
  left.push_back(k);
  right.push_back(k);
  if (has_j) {
    const int j = builder.factor("j", b.back());
    right.push_back(j);
    row.push_back(j);
  }
  builder.alignInput(0, left);
  builder.alignInput(1, right);
  builder.alignOutput(0, row);
  return builder.build(contractionFlops({a.back()}) * flops);
}

// Muon's steps of Newton and Schulz: of the whole matrix, always.
std::optional<FactorRule> orthogonalizedRule(const Graph& graph, const Node& node) {
  const RuleBuilder builder(graph, node);
  const auto [shorter, longer] = std::minmax(builder.outputShape(0)[0], builder.outputShape(0)[1]);
  const double products =
      2 * contractionFlops({shorter, shorter, longer}) + contractionFlops({shorter, shorter, shorter});
  return RuleBuilder(graph, node).build(std::stoi(node.overload) * products);
}

// ONNX Runtime's MatMul with flags for operands whose last two axes are exchanged.
std::optional<FactorRule> fusedMatMulRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const auto flag = [&](const char* name) { return node.intAttribute(name, 0) != 0; };
  const Shape& y = builder.outputShape(0);
  const bool transpose_a = flag("transA");
  const bool transpose_b = flag("transB");
  const size_t rank = y.size();
  const bool matrices = builder.inputShape(0).size() >= 2 && builder.inputShape(1).size() >= 2;
  if (!matrices || flag("transBatchA") || flag("transBatchB")) return std::nullopt;
  std::vector<int> left;
  for (size_t axis = 0; axis + 2 < rank; ++axis)
    left.push_back(builder.factor(fmt::format("b{}", axis), y[axis]));
  std::vector<int> right = left;
  std::vector<int> row = left;
  const int64_t contracted = *(builder.inputShape(0).rbegin() + (transpose_a ? 1 : 0));
  const int i = builder.factor("i", y[rank - 2]);
  const int k = builder.factor("k", contracted, FactorKind::kSum);
  const int j = builder.factor("j", y[rank - 1]);
  const auto append = [](std::vector<int>& factors, int first, int second) {
    factors.insert(factors.end(), {first, second});
  };
  append(left, transpose_a ? k : i, transpose_a ? i : k);
  append(right, transpose_b ? j : k, transpose_b ? k : j);
  append(row, i, j);
  builder.alignInput(0, left);
  builder.alignInput(1, right);
  builder.alignOutput(0, row);
  return builder.build(contractionFlops({contracted}) * builder.outputElements(0));
}

std::optional<FactorRule> gemmRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const bool transpose_a = node.intAttribute("transA", 0) != 0;
  const bool transpose_b = node.intAttribute("transB", 0) != 0;
  const Shape& y = builder.outputShape(0);
  const int64_t contracted = builder.inputShape(0)[transpose_a ? 0 : 1];
  const int i = builder.factor("i", y[0]);
  const int k = builder.factor("k", contracted, FactorKind::kSum);
  const int j = builder.factor("j", y[1]);
  builder.alignInput(0, transpose_a ? std::vector{k, i} : std::vector{i, k});
  builder.alignInput(1, transpose_b ? std::vector{j, k} : std::vector{k, j});
  builder.alignInput(2, {i, j});
  builder.alignOutput(0, {i, j});
  // A partial sum over k would add C once per part.
  if (builder.hasInput(2) && node.floatAttribute("beta", 1.0f) != 0) {
    builder.setKind(k, FactorKind::kWhole);
    builder.setAddedOnce(k, 2);
  }
  return builder.build(contractionFlops({y[0], contracted, y[1]}));
}

// [b.., k] x [k, g, j], or the other way round [g, j, k], -> [b.., g, j]: no device has some of the parts g.
std::optional<FactorRule> fusedProjectionRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& x = builder.inputShape(0);
  const Shape& y = builder.outputShape(0);
  std::vector<int> left, row;
  for (size_t axis = 0; axis + 1 < x.size(); ++axis)
    left.push_back(builder.factor(fmt::format("b{}", axis), x[axis]));
  row = left;
  const int k = builder.factor("k", x.back(), FactorKind::kSum);
  const int g = builder.factor("g", y[y.size() - 2], FactorKind::kWhole);
  const int j = builder.factor("j", y.back());
  left.push_back(k);
  row.insert(row.end(), {g, j});
  builder.alignInput(0, left);
  builder.alignInput(1, hasRowsOfParts(node) ? std::vector{g, j, k} : std::vector{k, g, j});
  builder.alignInput(2, {g, j});
  builder.alignOutput(0, row);
  if (builder.hasInput(2)) {  // a partial sum over k would add it once per part
    builder.setKind(k, FactorKind::kWhole);
    builder.setAddedOnce(k, 2);
  }
  return builder.build(contractionFlops({x.back()}) * builder.outputElements(0));
}

// dY [i, g, j] x W -> dX [i, k]
std::optional<FactorRule> fusedProjectionInputRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& dy = builder.inputShape(0);
  const Shape& dx = builder.outputShape(0);
  const int i = builder.factor("i", dy[0]);
  const int g = builder.factor("g", dy[1], FactorKind::kWhole);
  const int j = builder.factor("j", dy[2], FactorKind::kSum);
  const int k = builder.factor("k", dx[1]);
  builder.alignInput(0, {i, g, j});
  builder.alignInput(1, hasRowsOfParts(node) ? std::vector{g, j, k} : std::vector{k, g, j});
  builder.alignOutput(0, {i, k});
  return builder.build(contractionFlops({dx[1]}) * builder.inputElements(0));
}

// X [i, k], dY [i, g, j] -> dW [k, g, j]; or dY first, and [g, j, k]
std::optional<FactorRule> fusedProjectionWeightRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t of_x = hasRowsOfParts(node) ? 1 : 0;
  const Shape& x = builder.inputShape(of_x);
  const Shape& dy = builder.inputShape(1 - of_x);
  const int i = builder.factor("i", x[0], FactorKind::kSum);
  const int k = builder.factor("k", x[1]);
  const int g = builder.factor("g", dy[1], FactorKind::kWhole);
  const int j = builder.factor("j", dy[2]);
  builder.alignInput(of_x, {i, k});
  builder.alignInput(1 - of_x, {i, g, j});
  builder.alignOutput(0, hasRowsOfParts(node) ? std::vector{g, j, k} : std::vector{k, g, j});
  return builder.build(contractionFlops({x[1]}) * builder.inputElements(1 - of_x));
}

}  // namespace

void registerMatmulRules(RuleTable& table) {
  table.add(kPipeshardDomain, "Orthogonalized", orthogonalizedRule);
  table.add("", "MatMul", matMulRule);
  table.add("", "Gemm", gemmRule);
  table.add("com.microsoft", "FusedMatMul", fusedMatMulRule);
  table.add(kPipeshardDomain, "FusedProjection", fusedProjectionRule);
  table.add(kPipeshardDomain, "FusedProjectionInputGrad", fusedProjectionInputRule);
  table.add(kPipeshardDomain, "FusedProjectionWeightGrad", fusedProjectionWeightRule);
}

}  // namespace pipeshard
