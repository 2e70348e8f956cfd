// From a Graph as read to a *prepared* graph: functions inlined, symbolic dimensions bound, constants folded,
// every value with a type and a static shape.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/base/allowed_integers.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// A symbolic dimension of the graph's inputs and where it occurs, e.g. {"batch", {"input_ids axis 0", "labels
// axis 0"}}.
struct SymbolicDimension {
  std::string name;
  std::vector<std::string> places;
};
std::vector<SymbolicDimension> symbolicDimensions(const Graph& graph);

// The dimensions that a model proposes itself (model metadata "pipeshard.dimensions" = "batch=8,seq=16"), or
// empty.
std::map<std::string, int64_t> defaultDimensions(const Graph& graph);

struct PrepareOptions {
  std::map<std::string, int64_t> dimensions;  // every symbolic dimension of the inputs must be bound here
  // Constants of up to this many bytes are computed by the evaluator; larger results stay nodes.
  int64_t fold_limit_bytes = 1 << 20;
  // Which standard operators may stay as they are. One that may not, but has an ONNX function body, is
  // replaced by its body (repeatedly). Empty: all stay. The command passes "has a kernel, and a gradient
  // rule".
  std::function<bool(const Node&)> supported;
};

// Steps, in this order (each needs what the one before gives): inline model-local functions; bind dimensions;
// repeat shape inference and constant folding until nothing changes; expand operators that have no kernel or
// rule but an ONNX function body; remove dead code; verify that every shape is static. Errors: kUsage for an
// unbound or unknown dimension (names those that exist and shows the option), kBadModel naming the node whose
// shape cannot be found or contradicts another.
Graph prepareModel(Graph graph, const PrepareOptions& options);

// Type and shape inference of one graph in place, with ONNX's own schemas; the pipeshard domain by its
// function bodies.
void inferShapes(Graph& graph);

// Computes nodes whose inputs are constants (small evaluator: shape arithmetic, masks, casts). In place.
// Returns how many nodes were folded.
int foldConstants(Graph& graph, int64_t limit_bytes);

// Replaces calls of model-local functions by their bodies (value and node names made unique, attribute
// references filled in, metadata of the call kept on the body's nodes), repeatedly, except functions for
// which `keep` is true. Types and shapes of the new values are not known afterwards: call inferShapes.
// Error(kBadModel) on recursion or beyond `node_limit` nodes.
void inlineFunctions(Graph& graph, uint64_t node_limit,
                     const std::function<bool(const Function&)>& keep = {});

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
// Clip: a number out of range may never be used; not exact).
//   ids read by a Gather of 50 rows: [-50, 50);  labels of 10 classes: [0, 10) or -100
std::optional<AllowedIntegers> allowedIntegers(const Graph& graph, ValueId input);

}  // namespace pipeshard
