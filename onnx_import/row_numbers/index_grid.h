// What the indices of a GatherND or ScatterND count along their axes. Exporters write x[:, :, 2:5] as a grid:
// its first component counts the rows, the next the columns, and so on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Integers that differ along one axis at most: numbers[p] at position p of `axis`.
struct IndexLine {
  int axis = -1;  // -1: the same number everywhere, numbers[0]
  std::vector<int64_t> numbers;
};

// One line for each of the k components of indices [.., k], whose other axes the lines are along. Nothing for
// indices that are no such grid, are empty, or depend on data. Indices of a large batch are no constants: the
// Expand, Unsqueeze, Reshape and Concat that they are made by are looked through.
//   [4, 1, 3, 3] of x[:, :, 2:5] with 4 rows and 1 column:  {0, {0, 1, 2, 3}}, {-1, {0}}, {2, {2, 3, 4}}
// `producer`: of the graph's values, by index (UseDef::producer); values behind its end have none.
std::optional<std::vector<IndexLine>> indexGrid(const Graph& graph, const std::vector<NodeId>& producer,
                                                ValueId indices);

}  // namespace pipeshard
