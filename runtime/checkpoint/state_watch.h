// Of what a rank keeps across steps: which values are not finite, and have become so. Nothing can be trained
// from such weights.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "ir/base/tensor_box.h"
#include "runtime/checkpoint/rank_state.h"
#include "runtime/execute/executor.h"
#include "runtime/files/tensor_file.h"

namespace pipeshard {

// What was looked at once is only read: several threads may ask fault() then.
class StateWatch {
 public:
  // Before the first step, if at all: looks for values that are infinite, or NaN, as they are now (of a mask
  // that is kept as a parameter, say, or of a row that nothing reads, and of their moving averages). They may
  // stay so: what reaches the loss is seen there.
  void look(const Executor& executor);
  // A part of a buffer, from element `first` of it on; it begins at `start` of the whole tensor.
  // "'parameter/w' has inf at [0,1] (4 of the 16 values that this rank saves of it are not finite)"; "": all
  // may be saved.
  std::string fault(BufferId buffer, const TensorView& tensor, const Shape& start, size_t first) const;
  // Error(kNotANumber), in the same words, for the first tensor of all that the rank keeps now. For a job
  // that has done its steps and saves nothing.
  void requireFinite(const Executor& executor) const;

 private:
  struct AtStart {
    std::vector<bool> infinite, nan;  // by element
  };

  // Whether an element that has such a value (NaN, or infinite) had one at look().
  bool wasSo(BufferId buffer, size_t element, double value) const;

  std::map<BufferId, AtStart> at_start_;  // of those that have any, at look()
};

}  // namespace pipeshard
