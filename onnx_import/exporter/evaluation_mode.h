// A prepared model in evaluation mode: for a loss of data that it is not trained on.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// What evaluation leaves as it is, though it depends on more than data and weights.
struct EvaluationMode {
  int drawn = 0;  // inputs that are drawn at random beside the masks of dropouts (a sampling model)
};

// Puts a prepared forward graph into evaluation mode. Values keep their names, and nodes their outputs:
//   Dropout as it was lowered      Where(mask, Mul(x, 1/(1-ratio)), 0): the mask is all true, the factor 1
//   Attention that drops           likewise
//   BatchNormalization, training   reads its running statistics and leaves them as they are; what the model
//                                  makes of updated statistics is gone
// Graph outputs that are updated statistics are left out. Ids change. Error(kBadModel) naming the node of a
// dropout of another form.
EvaluationMode setEvaluationMode(Graph& prepared);

}  // namespace pipeshard
