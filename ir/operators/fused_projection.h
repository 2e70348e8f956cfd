// FusedProjection and its gradients: products with a matrix that holds several, whose columns are two axes.
//
//   FusedProjection            Y [.., g, n] = X [.., k] W + B [g, n], W [k, g, n]
//   FusedProjectionInputGrad   dX [m, k] of dY [m, g, n] and W
//   FusedProjectionWeightGrad  dW = X^T dY, of X [m, k] and dY [m, g, n]
//
// With the attribute `transposed` W is [g, n, k], as a Linear has it, and dW = dY^T X, of dY and X. Queries,
// keys and values are g = 3; a gate and what it lets through 2. Overloads, of bodies: "transposed", "bias",
// "transposed_bias", "".
#pragma once

#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

inline std::string projectionOverload(bool transposed, bool has_bias) {
  if (!transposed) return has_bias ? "bias" : "";
  return has_bias ? "transposed_bias" : "transposed";
}

// Is W [g, n, k]? Of any of the three.
inline bool hasRowsOfParts(const Node& node) { return node.intAttribute("transposed", 0) != 0; }

}  // namespace pipeshard
