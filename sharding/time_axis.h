// The time axis: cutting a batch into microbatches is cutting a factor, along time instead of along a mesh.
//
// One analysis over the factor rules finds for every value of the forward graph what its microbatch parts are to the whole:
//   invariant   every part is the whole                      (weights, masks)
//   split(axis) the whole is the parts, concatenated on axis (activations)
//   sum         the whole is the sum of the parts            (a summed loss, a label count)
// A ratio of sums (a mean; a mean over labels that are not ignored) becomes a sum after a rewrite: the denominator, which
// depends on batch inputs alone, is replaced by its total over all microbatches, computed in a prologue; a mean over a
// batch axis is scaled by 1/microbatches. What needs the whole batch in another way (a softmax, sort or normalisation over
// the batch axis, a product of two sums that depend on parameters) is refused by name.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/training_graph.h"

namespace pipeshard {

struct TimeKind {
  enum class Kind : uint8_t { kInvariant, kSplit, kSum };
  Kind kind = Kind::kInvariant;
  int axis = -1;  // kSplit
};

struct TimeAxisResult {
  std::vector<TimeKind> kinds;        // by value index of the rewritten graph
  std::vector<PrologueTotal> totals;  // values added by the rewrite: `part` is computed by nodes of the graph, `total` is a new input
  ValueId loss;                       // each microbatch's share
};

// Analyses the prepared graph of ONE microbatch in place and rewrites what the text on top says, so that the sum of `loss`
// over microbatches is the loss of the whole batch. `inputs` says which axis of which input is cut; with microbatches == 1
// nothing is rewritten. The loss must come out as a sum (a loss that is invariant or split is refused).
// Errors: kBadModel naming the node, the operator and why the batch cannot be cut there.
TimeAxisResult splitTimeAxis(Graph& microbatch_graph, ValueId loss, const std::vector<BatchInput>& inputs, int64_t microbatches);

}  // namespace pipeshard
