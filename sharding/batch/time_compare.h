// Finds what depends on the batch size although it looks fixed. Preparation folds sizes into constants (the
// denominator of sum(x)/numel, a tensor of ones of the batch's size), and one prepared graph alone does not
// show which constants these are. So it is compared, value by value of the same name, with the same model
// prepared for another number of rows. Internal to time_axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ir/graph/graph.h"
#include "sharding/batch/time_axis.h"

namespace pipeshard {

class OtherBatch {
 public:
  // Knows nothing: everything that does not read a batch input is taken to be the same for every batch size.
  OtherBatch() = default;
  // `share.other` must outlive this.
  OtherBatch(const Graph& graph, const BatchShare& share);

  enum class Change : uint8_t {
    kUnknown,  // no value of this name, type and rank in the other graph
    kNone,     // equal shape
    kGrows,    // `axis` is longer by the ratio of the rows
    kOther,    // the shapes have nothing to do with each other
  };
  struct Comparison {
    Change change = Change::kUnknown;
    int axis = -1;
  };
  Comparison compare(ValueId value) const;

  // The other graph's constant of that name, or nullptr.
  const Constant* constant(ValueId value) const;
  // A node of the other graph that one of the values depends on and that reads or writes elements by numbered
  // places (ScatterND; GatherND with constant indices), but is no such node here: preparation took it for all
  // rows in one of the graphs, as it does with row 0 of a batch of one row. nullptr: there is none.
  const Node* numberedElsewhere(const Graph& graph, const std::vector<ValueId>& values) const;
  const Shape& shape(ValueId value) const { return other_->shape(namesake_[value.index()]); }

 private:
  const Graph* other_ = nullptr;
  std::vector<ValueId> namesake_;  // by value index of the graph
  std::vector<Comparison> comparisons_;
};

// Both constants hold the same for every example along `axis`, of which one has `rows` and the other
// `other_rows`.
bool areEqualExamples(const Constant& constant, int64_t rows, const Constant& other, int64_t other_rows,
                      size_t axis);

// Integers that count along an axis of `rows` and are the same along all others: 0, 1, 2, .., rows - 1.
bool numbersExamples(const Constant& constant, int64_t rows);

// The input says where or how large, not what: its content belongs to the microbatch's shapes and stays as it
// is.
bool isShapeArgument(const Node& node, size_t input);

}  // namespace pipeshard
