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
// the type that they have. Elementwise work on what float32 operators give stays float32 where no product,
// convolution, normalisation or pool follows: so terms of a loss are weighed and added up in float32. A value
// is an activation if it depends on an input of the graph and on a weight: what is computed of inputs alone
// (positions, masks), or of weights alone (a normalised weight), stays float32, and is rounded where an
// activation meets it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "ir/base/data_type.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// How many operators give which type. Integers, and Casts of the model, count nowhere.
struct OperatorTypes {
  size_t narrow = 0;   // work on activations and give the narrow type
  size_t float32 = 0;  // work on activations and give float32
  size_t apart = 0;    // work on inputs alone, or on weights alone
};

struct MixedNodes {
  OperatorTypes all;
  std::map<std::string, OperatorTypes> operators;  // by "domain::operator"; what works on activations
  size_t casts = 0;                                // that were put in, of activations and the like
  size_t weight_casts = 0;                         // of weights: once per step
  size_t kept = 0;  // operators of `narrow` type that the user keeps in float32
};

// Changes a prepared graph (static shapes) whose floats are float32. Outputs of the graph keep name and type.
// Masks and the like that the type cannot hold (float32's least number) become its least finite number, not
// infinity; what is infinite, or no number, stays so. Value names: "<value>/bfloat16" and "<value>/float32"
// for what the Casts give. The same graph at another batch size is changed at the same nodes.
//
// `keep_float32`: regular expressions. An operator in whose type ("MatMul", "pipeshard::Attention"), name or
// output's name one is found works in float32. Error(kUsage) where one is found in none of the operators that
// work on activations, and for a type other than bfloat16 and float16.
MixedNodes mixPrecision(Graph& graph, DataType narrow, const std::vector<std::string>& keep_float32 = {});

// "bfloat16: 61 operators compute in bfloat16, 12 in float32 ..."
std::string mixedNodesToString(const MixedNodes& nodes, DataType narrow);

}  // namespace pipeshard
