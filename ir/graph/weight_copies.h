// Copies of weights in a narrower type, which a step makes once (mixed precision).
//
//   forward   w' = Cast(w);  h = MatMul(x, w')        w float32, w' bfloat16
//   backward  dx = Gemm(dh, w')
//
// The weight is the same for all microbatches, so the Cast runs once: before the first pass that reads w'.
// All passes of all microbatches, forward and backward, then read that copy, which stays until the last has
// read it. It is a forward node all the same: it has a layer, as any other. Its stage is the first of its
// forward readers: a stage that makes copies for another one would have to hold the weight for it.
#pragma once

#include "ir/graph/training_graph.h"

namespace pipeshard {

// Is it a forward Cast of a parameter, or of another weight, to a narrower floating-point type? Not where the
// copy is an output of the graph.
bool isWeightCopy(const TrainingGraph& training, NodeId node);

// Is the value what such a node gives? `producer` as in UseDef.
inline bool isWeightCopy(const TrainingGraph& training, const std::vector<NodeId>& producer, ValueId value) {
  return producer[value.index()].valid() && isWeightCopy(training, producer[value.index()]);
}

}  // namespace pipeshard
