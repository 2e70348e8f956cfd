// How an operator works on its tensors row by row: the same kernel, made for a few rows, gives the same
// elements as one made for all of them. Internal to chains.
//
//   Add [4,128,768] + [768], 512 rows        the first moves, the second is read whole by every row
//   LayerNormalization [4,128,768], 512 rows its mean [4,128,1] moves, too: one number a row
//   Exp [4,128,768]                          any number of rows that divides its elements: it has no axes
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard::kernels {

struct NodeRows {
  bool flat = false;              // its axes mean nothing: all that moves has as many elements
  size_t axes = 0;                // else: of the first output, those that count rows
  std::vector<bool> inputs_move;  // by input; false: every row reads it whole, or it is absent
};

// Element by element, or over its last axes alone.
bool worksOnRows(const Node& node);

// Nothing: it cannot be seen as `rows` rows. All shapes are static, rows > 1.
std::optional<NodeRows> seeAsRows(const Graph& graph, const Node& node, int64_t rows);

// All numbers of rows but 1 that the leading axes of its first output make, and, where it has no axes, that
// of its elements; rising.
std::vector<int64_t> rowCounts(const Graph& graph, const Node& node);

// Elements that are vectors of every type and instruction set. The compiler computes what is behind the last
// whole vector of a loop by other instructions, whose rounding may differ; so a group cuts loops where the
// operator alone is cut, or between whole vectors.
inline constexpr int64_t kWholeVectors = 64;
// Is it one loop over all elements, however they are cut? Else its loops end with the rows.
bool loopsOverRows(const Node& node, const NodeRows& seen);
// A task has a multiple of so many rows, for `elements` of the node's output in `rows` rows. Nothing: no cut
// is between whole vectors.
std::optional<int64_t> rowsOfWholeVectors(int64_t elements, int64_t rows);

// Shapes of what a kernel for `count` of `rows` rows is given; the node as such a kernel has it.
Shape shapeOfRows(const Graph& graph, const Node& node, const NodeRows& seen, int64_t rows, int64_t count,
                  ValueId id, bool moves);
Node nodeOfRows(const Graph& graph, const Node& node);

}  // namespace pipeshard::kernels
