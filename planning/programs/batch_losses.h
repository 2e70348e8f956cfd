// What the losses of several batches say of the loss of all their rows at once.
#pragma once

#include <functional>

#include "ir/graph/training_graph.h"

namespace pipeshard {

struct BatchLosses {
  // They are to be added up: the loss is a sum over rows. Else their mean by rows is wanted.
  bool adds = false;
  // That is the loss of all rows: not where the loss has terms of both kinds, or a sum over rows has others
  // that do not depend on the batch and would be counted once per batch.
  bool exact = true;
};

// Of a loss without totals. `part(n)`: the forward graph of one of n equal parts of a batch, always of as
// many rows (sharding/batch/time_axis.h). A mean's part is a smaller share in a larger batch, and constants
// say so; a sum's part is the same in every batch.
//   loss = ReduceSum(e)                            adds
//   loss = ReduceMean(e) * share, share = 1/n      the mean by rows
BatchLosses lossesOfBatches(const std::function<TrainingGraph(int n)>& part);

}  // namespace pipeshard
