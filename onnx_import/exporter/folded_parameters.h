// Parameters whose numbers the exporter's optimizer has only moved, or given as one sum, into constants.
//
// PyTorch's exporter computes beforehand what depends on small parameters alone (at most 8,192 elements).
// Where the constant still has all of the parameter's numbers, and the file tells in which order, the
// parameter is made again, with the nodes that make the constant of it:
//   expand       the token of a class, for each row of a batch of 8
//                  class_token [1,1,768]  →  Expand  →  'expand' [8,1,768]
//   views        the scale of a layer: gamma [64]  →  Reshape  →  'unsqueeze_1' [64,1,1]
//   group norms  scale and bias, per call: [64]  →  Reshape  →  [64,1,1], of which the file has one for all
//                calls whose parameters were equal
//   slopes       that of each call of PRelu: [10]  →  Reshape  →  'val_1' [1,10], likewise
//   recurrences  LSTM, GRU and RNN have their gates in another order in ONNX, and both biases as one tensor
//                  bias_ih_l0 [4n], bias_hh_l0 [4n]  →  Slice, Concat  →  'val_64' [1,8n]
//   windows      a table of biases by relative position (Swin), read for each pair of a window's places
//                  table [169,h]  →  Gather, Transpose  →  'unsqueeze' [1,h,49,49]
//   one plus     the scale of Gemma's norms: weight  →  1 + weight, 'add_4'. (Of the weight are left the
//                digits that the sum has.)
//   functions    the temperature of a contrastive loss: logit_scale  →  Exp  →  'exp' (parameter_unfolding.h)
// So is what reads such a constant beside a parameter that the file has (parameter_copies.h).
// What else was computed of a parameter (rows of a table whose places are not told, products, squares) stays
// as it is, and the parameter is lost (module_parameters.h).
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// How many are there again, under their names and marked as parameters (weight_role.h), or read again. Of the
// graph as read; restoreParameters begins with it.
int unfoldParameters(Graph& graph);

}  // namespace pipeshard
