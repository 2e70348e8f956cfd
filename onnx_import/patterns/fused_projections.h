// A product with a matrix that holds several, side by side, becomes one whose columns are two axes: queries,
// keys and values of an attention, a gate and what it lets through.
//
//   q, k, v = Split(x W + b), W [d,3n], b [3n]
//     =>  y = FusedProjection(x, W, b), W [d,3,n], b [3,n], y [..,3,n];  q, k, v = Split(y)
//
// Tensor parallelism gives each device some heads. Half of the columns of W [d,3n] are all of q and half of
// k: what the product gives has to be exchanged, forward and backward. Half of the last axis of W [d,3,n] is
// half of the heads of all three. The parameter keeps its elements and their order: only its shape is
// another, and kDividedAxis (ir/graph/weight_role.h) says which it has in the file.
//
// Where the matrix lies transposed, W [3n,d], it becomes [3,n,d].
#pragma once

#include <vector>

#include "onnx_import/patterns/patterns.h"

namespace pipeshard {

// To be called when attention has been found. Returns how many there are.
int divideFusedProjections(Graph& graph, std::vector<NearMiss>& missed);

}  // namespace pipeshard
