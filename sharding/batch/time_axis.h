// The time axis: cutting a batch into microbatches is cutting a factor, along time instead of along a mesh.
//
// One analysis over the factor rules finds for every value of the forward graph what its microbatch parts are
// to the whole:
//   invariant   every part is the whole                      (weights, masks)
//   split(axis) the whole is the parts, concatenated on axis (activations)
//   sum         the whole is the sum of the parts            (a summed loss, a label count)
// A ratio of sums (a mean; a mean over labels that are not ignored) becomes a sum after a rewrite: the
// denominator, which depends on batch inputs and on what no step changes alone, is replaced by its total over
// all microbatches, computed in a prologue; a mean over a batch axis is scaled by the share of the batch that
// the part holds. What needs the whole batch in another way (a softmax, sort or normalisation over the batch
// axis, a product of two sums that depend on parameters) is refused by name. A batch normalisation in
// training mode is no such case: by definition it sees one microbatch, whole, and its result is split as its
// input is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/base/error.h"
#include "ir/graph/graph.h"
#include "ir/graph/training_graph.h"

namespace pipeshard {

// kBadModel: a batch that cannot be cut at a node. The message is the cause and, behind it, what to do, as
// far as it is known here: "<cause>. Use one microbatch (--microbatches 1), or <way out>".
class BatchCutError : public Error {
 public:
  BatchCutError(std::string cause, std::string way_out);

  // "<node>: the batch cannot be cut into microbatches here: <reason>"
  const std::string& cause() const { return cause_; }
  // Of the model: "change the model so that ..."
  const std::string& wayOut() const { return way_out_; }
  // Whether the node combines examples for sure. Else they are not seen apart, which another size of the
  // batch might show.
  bool isMeeting() const { return is_meeting_; }
  void setMeeting() { is_meeting_ = true; }
  // Of the part that the batch was to be cut into; 0: not known.
  int64_t rows() const { return rows_; }
  void setRows(int64_t rows) { rows_ = rows; }

 private:
  std::string cause_, way_out_;
  int64_t rows_ = 0;
  bool is_meeting_ = false;
};

struct TimeKind {
  enum class Kind : uint8_t { kInvariant, kSplit, kSum };
  Kind kind = Kind::kInvariant;
  int axis = -1;  // kSplit
};

struct TimeAxisResult {
  std::vector<TimeKind> kinds;  // by value index of the rewritten graph
  // values added by the rewrite: `part` is computed by nodes of the graph, `total` is a new input
  std::vector<PrologueTotal> totals;
  ValueId loss;  // each microbatch's share; invalid: there is none
};

// What is wanted of a forward graph: a loss (invalid: none), and outputs that are to be the parts of the
// whole's.
struct WantedValues {
  ValueId loss;
  std::vector<ValueId> outputs = {};
  // Initializers that look like parameters, but that no step of a job changes: no gradient of the loss
  // reaches them, and no forward pass replaces them. A prologue may compute of them.
  std::vector<ValueId> constants = {};
};

// The part of the batch that a graph holds: a microbatch.
struct BatchShare {
  int64_t rows = 1;   // in the graph
  int64_t batch = 1;  // rows of the whole batch
  // The same model prepared for another number of rows: for the whole batch, or (where the graph itself holds
  // the whole batch) for any other number. `rows` may be more than `batch` where only the form of the graph
  // is wanted (training_rows.h).
  const Graph* other = nullptr;
  int64_t other_rows = 0;
};

// Analyses the prepared graph of ONE part of the batch in place and rewrites what the text on top says, so
// that the sum of the loss over the parts is the loss of the whole batch, however the batch is cut into
// parts, equal or not. `inputs` says which axis of which input is cut; when the share is the whole batch and
// `other` is not given, nothing is rewritten or refused (every kind is invariant). The loss must come out as
// a sum (a loss that is invariant or split is refused), an output as anything but a sum. Both stay the same
// values. Values that neither depends on are not analysed and count as invariant.
//
// Nodes that compute the parts of totals belong to the prologue alone: what the forward pass needs too is
// there twice, the prologue's values as "<value>.prologue". A total is never part of a prologue. Of
// WantedValues::constants, those that a prologue reads are no parameters any more: they become weights that
// are not trained (InitializerRole::kFrozen). A value that
// does not depend on the batch and is added to a sum is given to the parts by their rows (c rows/batch).
//
// Preparation folds sizes into constants: the n of sum(x)/n, or ones of the batch's size, look as if they did
// not depend on the batch. With `share.other` they are found by comparison (constants of other content are
// replaced by the whole's; shapes must grow where the batch is cut), and it decides where a batch of one, or
// of one group of rows, goes in a Reshape. Without it a constant is taken to be the same for every batch
// size, and random numbers that are not cut to be alike for every example. It is not kept.
//
// Errors: BatchCutError naming the node, the operator and why the batch cannot be cut there; kBadModel of a
// loss or an output that is not what is wanted.
//
// Example: loss = SoftmaxCrossEntropyLoss(scores, labels) with reduction "mean" and ignore_index -100 becomes
//   prologue: part = ReduceSum(Cast(Not(Equal(labels', -100))))    (labels': the prologue's copy)
//   forward:  loss = Div(SoftmaxCrossEntropyLoss(scores, labels, reduction "sum"), total)
TimeAxisResult splitTimeAxis(Graph& graph, const WantedValues& wanted, const std::vector<BatchInput>& inputs,
                             const BatchShare& share);

}  // namespace pipeshard
