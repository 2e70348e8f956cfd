// From a Graph as read to a *prepared* graph: functions inlined, symbolic dimensions bound, constants folded,
// every value with a type and a static shape.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "ir/graph/graph.h"
#include "onnx_import/format/reader.h"

namespace pipeshard {

struct PrepareOptions {
  std::map<std::string, int64_t> dimensions;  // every symbolic dimension of the inputs must be bound here
  // Constants of up to this many bytes are computed by the evaluator; larger results stay nodes.
  int64_t fold_limit_bytes = 1 << 20;
  // Which standard operators may stay as they are. One that may not, but has a lowering or an ONNX function
  // body, is replaced by it (repeatedly). Empty: all stay. Planning passes canTrain
  // (planning/model/operator_support.h).
  std::function<bool(const Node&)> supported;
  // Tensors have at most so many elements (the reader's limit, by default).
  uint64_t tensor_elements = ImportLimits().tensor_elements;
  std::set<std::string> chosen = {};  // of `dimensions`, those whose size nobody gave: messages say so
};

// Steps, in this order (each needs what the one before gives):
//   1. inline model-local functions, but those of the domain pipeshard; name the parts of a Split that have
//      no name; bind dimensions
//   2. write old operators in the forms of opset 18 (upgrade.h)
//   3. repeat shape inference, constant folding, simplification, batches without row numbers (row_numbers)
//      and the unrolling of loops until nothing changes
//   4. mark the weights that their place alone tells (keepLayerWeights), before their readers are replaced
//   5. where `supported` is given: replace operators to which it says no, or which a lowering claims, by
//      their lowering, else by their ONNX function body; take both branches of an If on data (branches.h);
//      fold as in 3; repeat until nothing changes
//   6. give nodes of such bodies the graph's opset, or the graph one that has theirs (adoptImportedOpset;
//      then 3 and 5 once more); drop optional outputs that nobody reads and whose shape is not known; remove
//      dead code
//   7. verify that every shape is static
// Errors: kUsage for an unbound or unknown dimension (names those that exist and shows the option), kBadModel
// naming the node whose shape cannot be found or contradicts another, or the control flow that cannot be made
// flat. It says which sizes were given or chosen where others may mend it, and that none does where types or
// numbers of axes contradict each other.
Graph prepareModel(Graph graph, const PrepareOptions& options);

}  // namespace pipeshard
