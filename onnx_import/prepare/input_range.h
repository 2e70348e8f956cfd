// Which integers an input may hold, as far as the graph tells.
#pragma once

#include <cstdint>
#include <optional>

#include "ir/base/allowed_integers.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// The half-open integer range that an integer graph input may hold, as far as the graph tells: indices of a
// Gather lie in [0, size of the axis), class labels in [0, classes). Followed through Cast, Reshape, Slice,
// Squeeze, Unsqueeze, Concat, Transpose, Expand, Pad, Identity, Where. {0, 2} when nothing restricts it
// (masks, flags); {0, 0} for floating-point inputs.
struct IntegerRange {
  int64_t low = 0;
  int64_t high = 0;
};
IntegerRange inputRange(const Graph& graph, ValueId input);

// What an integer graph input may hold without an operator refusing it, or nothing when the graph does not
// tell. Other than inputRange it knows negative indices and the loss's ignore_index, and tells what came
// through operators that keep every element (Cast, Reshape, Transpose, ...) from the rest (Slice, Where,
// Clip: a number out of range may never be used; not exact). A Gather that is a call of PyTorch's embedding
// (exporter_marks.h) takes no negative indices, as the module refuses them.
//   ids read by a Gather of 50 rows: [-50, 50), by an embedding: [0, 50);  labels of 10 classes: [0, 10) or
//   -100
std::optional<AllowedIntegers> allowedIntegers(const Graph& graph, ValueId input);

}  // namespace pipeshard
