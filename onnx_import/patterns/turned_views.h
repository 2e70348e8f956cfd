// Views around Transposes, in the fewest nodes and with the most axes at the Transpose.
//
//   [s,b,hd] ─Reshape→ [s,bh,d] ─Transpose→ [bh,s,d] ─Reshape→ [b,h,s,d]        nn.MultiheadAttention
//     =>  [s,b,hd] ─Reshape→ [s,b,h,d] ─Transpose→ [b,h,s,d]
//
// Where rows of the batch and heads are one axis for a while, no device can have some of the heads: they lie
// in pieces. Views that divide an axis go in front of a Transpose, those that merge axes behind it.
#pragma once

#include "ir/graph/graph.h"
#include "onnx_import/patterns/more_rows.h"

namespace pipeshard {

// Of a prepared graph. Returns how many nodes it has taken away. Only values that one node reads get other
// shapes. `more_rows`: of a graph of one row, or nullptr.
int turnViews(Graph& graph, MoreRows* more_rows = nullptr);

}  // namespace pipeshard
