// What lies over an attention's scores: masks and biases, as an exporter has written them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "onnx_import/patterns/match.h"

namespace pipeshard {

struct AttentionOverlay {
  enum class Kind : uint8_t { kMask, kBias } kind = Kind::kBias;
  ValueId tensor;         // the mask, or what is added
  NodeId node;            // that puts it on
  bool inverted = false;  // the mask is true where the number is put
  double fill = 0;
  ValueId bias = {};  // valid: the mask stands for this tensor, which is added
};

// A number in every place of a tensor, the same one.
std::optional<double> numberEverywhere(const PatternGraph& patterns, ValueId value);

// What adds `tensor` to the scores. Where(seen, 0, -infinity) hides them to the last bit: it is a mask, which
// needs a byte for each score, and no number. A finite number is added, the lowest as well: a row that it
// hides whole is even, and its scores have a gradient, which those of a choice have not.
AttentionOverlay addedOverlay(const PatternGraph& patterns, ValueId tensor, NodeId place);

// The function's attribute `overlays` for these, in the order in which they are put on. Where it has no such
// order, masks that stand for a bias become it again. Returns "", else what the function does not have.
std::string nameOverlays(std::vector<AttentionOverlay>& overlays, std::string& name);

}  // namespace pipeshard
