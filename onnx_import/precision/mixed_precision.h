// Mixed precision: what works on activations computes in a type of two bytes, all else stays float32.
//
//   h = MatMul(x, w); y = Softmax(h)
//     =>  h' = MatMul(x', Cast(w));  y = Softmax(Cast(h'))      with x' and h' in bfloat16, w and y in
//     float32
//
// The graph is changed before gradients are made, so that these follow: the gradient of a Cast is a Cast. A
// parameter stays float32, and so do the sum of its gradients over microbatches, the optimizer's states and
// its update: it is the master weight, what is saved, and what is taken home.
//
// Which operators compute in which type is a column of the table of facts (`MixedPrecision`,
// ir/operators/operator_facts.h): products, convolutions, attention and elementwise work are narrow;
// softmaxes, losses, sums over an axis, powers, roots and logarithms are float32's; what moves elements takes
// the type that they have. A value is an activation if it depends on an input of the graph and on a weight:
// what is computed of inputs alone (positions, masks), or of weights alone (a normalised weight), stays
// float32, and is rounded where an activation meets it.
#pragma once

#include <cstddef>
#include <string>

#include "ir/base/data_type.h"
#include "ir/graph/graph.h"

namespace pipeshard {

struct MixedNodes {
  size_t narrow = 0;   // operators that give the narrow type
  size_t float32 = 0;  // that work on activations in float32
  size_t casts = 0;    // that were put in
};

// Changes a prepared graph (static shapes) whose floats are float32. Outputs of the graph keep name and type.
// Masks and the like that the type cannot hold (float32's least number) become its least finite number, not
// infinity. Value names: "<value>/bfloat16" and "<value>/float32" for what the Casts give. The same graph at
// another batch size is changed at the same nodes. Error(kUsage) for a type other than bfloat16.
MixedNodes mixPrecision(Graph& graph, DataType narrow);

// "bfloat16: 61 operators compute in bfloat16, 12 in float32 ..."
std::string mixedNodesToString(const MixedNodes& nodes, DataType narrow);

}  // namespace pipeshard
