// From a Graph as read to a *prepared* graph: functions inlined, symbolic dimensions bound, constants folded,
// every value with a type and a static shape.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "ir/graph/graph.h"
#include "onnx_import/format/reader.h"

namespace pipeshard {

struct PrepareOptions {
  std::map<std::string, int64_t> dimensions;  // every symbolic dimension of the inputs must be bound here
  // Constants of up to this many bytes are computed by the evaluator; larger results stay nodes.
  int64_t fold_limit_bytes = 1 << 20;
  // Which standard operators may stay as they are. One that may not, but has an ONNX function body, is
  // replaced by its body (repeatedly). Empty: all stay. The command passes "has a kernel, and a gradient
  // rule".
  std::function<bool(const Node&)> supported;
  // Tensors have at most so many elements (the reader's limit, by default).
  uint64_t tensor_elements = ImportLimits().tensor_elements;
};

// Steps, in this order (each needs what the one before gives): inline model-local functions; bind dimensions;
// repeat shape inference, constant folding and the unrolling of loops until nothing changes; expand operators
// that have no kernel or rule but an ONNX function body, and take both branches of an If on data (branches.h)
// if `supported` says no to it; remove dead code; verify that every shape is static. Errors: kUsage for an
// unbound or unknown dimension (names those that exist and shows the option), kBadModel naming the node whose
// shape cannot be found or contradicts another, or the control flow that cannot be made flat.
Graph prepareModel(Graph graph, const PrepareOptions& options);

}  // namespace pipeshard
