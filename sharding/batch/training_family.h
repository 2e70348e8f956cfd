// The same training step at several batch sizes: microbatches need not be equal. A program for a microbatch
// of r rows is cut out of the training graph of r rows; all members have equal structure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "ir/graph/training_graph.h"

namespace pipeshard {

// A range of the rows (examples) of a batch.
struct Rows {
  int64_t first = 0;
  int64_t count = 0;
  int64_t end() const { return first + count; }
  friend auto operator<=>(const Rows&, const Rows&) = default;
};

// Share `index` of `parts`: [first + index*count/parts, first + (index+1)*count/parts). Shares differ by at
// most one row, and are empty only where there are fewer rows than parts.
//   shareOf({0, 8}, k, 3) is {0, 2}, {2, 3}, {5, 3}
Rows shareOf(Rows rows, int64_t index, int64_t parts);

// Members are made when they are first asked for, by one thread; several may ask for those that are made. The
// member of one row is derived from two larger ones (sharding/batch/training_rows.h): an axis of size 1 does
// not show that it is the batch.
class TrainingFamily {
 public:
  // The training graph of one part of the batch that has `rows` rows; asked for one row more than the largest
  // microbatch, too, or two where that is the batch.
  using Maker = std::function<TrainingGraph(int64_t rows)>;

  TrainingFamily(int64_t batch, int64_t microbatches, Maker maker);
  // One training graph whose batch has one row per microbatch, as far as anybody can know: it cannot be cut
  // further.
  explicit TrainingFamily(TrainingGraph only);

  int64_t batch() const { return batch_; }
  int64_t microbatches() const { return microbatches_; }
  Rows microbatch(int64_t k) const { return shareOf({0, batch_}, k, microbatches_); }
  int64_t largestMicrobatch() const { return (batch_ + microbatches_ - 1) / microbatches_; }

  // The member of the largest microbatch: what plans are made from.
  const TrainingGraph& base() const { return at(largestMicrobatch()); }
  // Errors: those of the maker; kBadModel when the graph of so many rows has other nodes than the base.
  const TrainingGraph& at(int64_t rows) const { return member(rows).training; }
  // Makes those of all microbatches. Errors as at.
  void makeMembers() const {
    for (int64_t k = 0; k < microbatches_; ++k) member(microbatch(k).count);
  }
  // The value of the member of `rows` rows that stands for a value of the base: the same node's output, or of
  // the same name.
  ValueId valueAt(int64_t rows, ValueId base_value) const;

 private:
  struct Member {
    TrainingGraph training;
    std::vector<ValueId> value_of;  // by value index of the base; empty for the base itself
  };
  const Member& member(int64_t rows) const;

  int64_t batch_;
  int64_t microbatches_;
  Maker maker_;
  mutable std::map<int64_t, std::unique_ptr<const Member>> members_;
};

}  // namespace pipeshard
