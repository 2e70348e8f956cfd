// Indexing. An index names a position of the whole axis that it looks into, so that axis cannot be cut; the
// axes of the indices are independent for reading, and partial sums for adding.

#include "sharding/rules/rule_builder.h"

namespace pipeshard {

namespace {

// Factors of data before the axis, of the indices, and of data after the axis: the axes of Gather's output in
// order.
struct GatherFactors {
  std::vector<int> data;     // of the data's axes
  std::vector<int> indices;  // of the indices' axes
  std::vector<int> gathered;
};

GatherFactors gatherFactors(RuleBuilder& builder, const Shape& data, const Shape& indices, size_t axis,
                            FactorKind index_kind) {
  GatherFactors result;
  result.data = builder.factorsOf(data, FactorKind::kParallel, "d");
  builder.setKind(result.data[axis], FactorKind::kWhole);
  result.indices = builder.factorsOf(indices, index_kind, "i");
  result.gathered.assign(result.data.begin(), result.data.begin() + axis);
  result.gathered.insert(result.gathered.end(), result.indices.begin(), result.indices.end());
  result.gathered.insert(result.gathered.end(), result.data.begin() + axis + 1, result.data.end());
  return result;
}

std::optional<FactorRule> gatherRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t axis = normalizeAxis(node.intAttribute("axis", 0), builder.inputShape(0).size());
  const GatherFactors factors =
      gatherFactors(builder, builder.inputShape(0), builder.inputShape(1), axis, FactorKind::kParallel);
  builder.alignInput(0, factors.data);
  builder.alignInput(1, factors.indices);
  builder.alignOutput(0, factors.gathered);
  return builder.build(builder.outputElements(0) * kMoveFlops);
}

// dY, Indices, Shape -> dData
std::optional<FactorRule> gatherGradRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& data = builder.outputShape(0);
  const size_t axis = normalizeAxis(node.intAttribute("axis", 0), data.size());
  const GatherFactors factors = gatherFactors(builder, data, builder.inputShape(1), axis, FactorKind::kSum);
  builder.alignInput(0, factors.gathered);
  builder.alignInput(1, factors.indices);
  builder.alignOutput(0, factors.data);
  return builder.build(builder.inputElements(0) * kMoveFlops);
}

// Factors of data and of indices (of equal rank): shared off the axis where the sizes agree. Where the
// indices reach only the first places of a larger axis, a cut of the one is no cut of the other.
std::pair<std::vector<int>, std::vector<int>> elementwiseIndexFactors(RuleBuilder& builder, const Shape& data,
                                                                      const Shape& indices, size_t axis,
                                                                      FactorKind on_axis) {
  std::vector<int> data_factors = builder.factorsOf(data, FactorKind::kWhole, "d");
  std::vector<int> index_factors = data_factors;
  for (size_t a = 0; a < data.size(); ++a) {
    if (a == axis) {
      index_factors[a] = builder.factor(fmt::format("i{}", a), indices[a], on_axis);
    } else if (data[a] == indices[a]) {
      builder.setKind(data_factors[a], FactorKind::kParallel);
    } else {
      index_factors[a] = builder.factor(fmt::format("i{}", a), indices[a], FactorKind::kWhole);
    }
  }
  return {data_factors, index_factors};
}

std::optional<FactorRule> gatherElementsRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& data = builder.inputShape(0);
  const size_t axis = normalizeAxis(node.intAttribute("axis", 0), data.size());
  const auto [of_data, of_indices] =
      elementwiseIndexFactors(builder, data, builder.inputShape(1), axis, FactorKind::kParallel);
  builder.alignInput(0, of_data);
  builder.alignInput(1, of_indices);
  builder.alignOutput(0, of_indices);
  return builder.build(builder.outputElements(0) * kMoveFlops);
}

// dY, Indices, Shape -> dData
std::optional<FactorRule> gatherElementsGradRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& data = builder.outputShape(0);
  const size_t axis = normalizeAxis(node.intAttribute("axis", 0), data.size());
  const auto [of_data, of_indices] =
      elementwiseIndexFactors(builder, data, builder.inputShape(1), axis, FactorKind::kSum);
  builder.alignInput(0, of_indices);
  builder.alignInput(1, of_indices);
  builder.alignOutput(0, of_data);
  return builder.build(builder.inputElements(0) * kMoveFlops);
}

// data, indices, updates -> data with elements replaced; a cut of the indices would leave only a part of them
// replaced.
std::optional<FactorRule> scatterElementsRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& data = builder.inputShape(0);
  const size_t axis = normalizeAxis(node.intAttribute("axis", 0), data.size());
  const auto [of_data, of_indices] =
      elementwiseIndexFactors(builder, data, builder.inputShape(1), axis, FactorKind::kWhole);
  builder.alignInput(0, of_data);
  builder.alignInput(1, of_indices);
  builder.alignInput(2, of_indices);
  builder.alignOutput(0, of_data);
  return builder.build(builder.outputElements(0) * kMoveFlops);
}

// data [batch.., indexed.., rest..], indices [batch.., i.., depth] -> [batch.., i.., rest..]
std::optional<FactorRule> gatherNdRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& data = builder.inputShape(0);
  const Shape& indices = builder.inputShape(1);
  const size_t batch = node.intAttribute("batch_dims", 0);
  const size_t depth = indices.back();
  std::vector<int> of_indices =
      builder.factorsOf(Shape(indices.begin(), indices.end() - 1), FactorKind::kParallel, "i");
  std::vector<int> gathered = of_indices;
  for (size_t axis = 0; axis < batch; ++axis) builder.setInput(0, axis, {of_indices[axis]});
  for (size_t axis = 0; axis < of_indices.size(); ++axis) builder.setInput(1, axis, {of_indices[axis]});
  for (size_t axis = batch + depth; axis < data.size(); ++axis) {
    gathered.push_back(builder.factor(fmt::format("d{}", axis), data[axis]));
    builder.setInput(0, axis, {gathered.back()});
  }
  builder.alignOutput(0, gathered);
  return builder.build(builder.outputElements(0) * kMoveFlops);
}

// data [indexed.., rest..], indices [i.., depth], updates [i.., rest..]: only the rest is independent.
std::optional<FactorRule> scatterNdRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const Shape& data = builder.inputShape(0);
  const Shape& indices = builder.inputShape(1);
  const size_t depth = indices.back();
  for (size_t axis = depth; axis < data.size(); ++axis) {
    const int factor = builder.factor(fmt::format("d{}", axis), data[axis]);
    builder.setInput(0, axis, {factor});
    builder.setInput(2, indices.size() - 1 + axis - depth, {factor});
    builder.setOutput(0, axis, {factor});
  }
  return builder.build(builder.outputElements(0) * kMoveFlops);
}

// indices, depth, values -> indices with a class axis inserted
std::optional<FactorRule> oneHotRule(const Graph& graph, const Node& node) {
  RuleBuilder builder(graph, node);
  const size_t axis = normalizeAxis(node.intAttribute("axis", -1), builder.outputShape(0).size());
  const std::vector<int> factors = builder.factorsOf(builder.inputShape(0), FactorKind::kParallel, "i");
  builder.alignInput(0, factors);
  for (size_t i = 0; i < factors.size(); ++i) builder.setOutput(0, i < axis ? i : i + 1, {factors[i]});
  builder.setOutput(0, axis, {builder.factor("depth", builder.outputShape(0)[axis], FactorKind::kWhole)});
  return builder.build(builder.outputElements(0) * kMoveFlops);
}

}  // namespace

void registerGatherRules(RuleTable& table) {
  table.add("", "Gather", gatherRule);
  table.add("", "GatherElements", gatherElementsRule);
  table.add("", "GatherND", gatherNdRule);
  table.add("", "ScatterElements", scatterElementsRule);
  table.add("", "ScatterND", scatterNdRule);
  table.add("", "OneHot", oneHotRule);
  table.add(kPipeshardDomain, "GatherGrad", gatherGradRule);
  table.add(kPipeshardDomain, "GatherElementsGrad", gatherElementsGradRule);
}

}  // namespace pipeshard
