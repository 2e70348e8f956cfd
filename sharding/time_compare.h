// What changes with the batch size although it looks fixed: preparation folds sizes into constants (the denominator of
// sum(x)/numel, a tensor of ones of the batch's size), so the graph of a microbatch alone does not show them. Comparing it with
// the same model prepared for the whole batch, value by value by name, does. Internal to time_axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace pipeshard {

class WholeBatch {
 public:
  // Knows nothing: everything that does not read a batch input is taken to be the same for every batch size.
  WholeBatch() = default;
  // `whole` must outlive this.
  WholeBatch(const Graph& microbatch, const Graph& whole, int64_t microbatches);

  enum class Change : uint8_t {
    kUnknown,  // no value of this name, type and rank in the whole
    kNone,     // equal shape
    kGrows,    // `axis` is larger by the number of microbatches
    kOther,    // the shapes have nothing to do with each other
  };
  struct Comparison {
    Change change = Change::kUnknown;
    int axis = -1;
  };
  Comparison compare(ValueId value) const;

  // The whole batch's constant of that name, or nullptr.
  const Constant* constant(ValueId value) const;
  const Shape& shape(ValueId value) const { return whole_->shape(namesake_[value.index()]); }

 private:
  const Graph* whole_ = nullptr;
  std::vector<ValueId> namesake_;  // by value index of the microbatch's graph
  std::vector<Comparison> comparisons_;
};

// The constant of the whole batch is the microbatch's, again and again along `axis`.
bool isRepetition(const Constant& part, const Constant& whole, size_t axis);

// The input says where or how large, not what: its content belongs to the microbatch's shapes and stays as it is.
bool isShapeArgument(const Node& node, size_t input);

}  // namespace pipeshard
