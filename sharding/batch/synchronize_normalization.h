// Batch normalisation over a microbatch whose rows are cut over data-parallel devices: every device
// normalises with the moments of the whole microbatch, as one device would.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// `piece`: a subgraph of one device (static shapes), whose batch axis holds rows_here of the rows_together
// rows that the devices of `group` (one of Program::groups) hold together. Every BatchNormalization with
// training_mode = 1, and every pipeshard::BatchNormalizationInputGrad and ...WeightGrad, becomes standard
// nodes and pipeshard::AllReduce nodes over `group`, as batch_moments.h says. Gradients of Scale and Bias are
// over this device's rows: parts of the gradient, to be summed.
//
// Moments of one x are computed once per piece. Graph inputs and outputs keep names, shapes and order.
// Functions that nobody calls any more leave piece.functions. The nodes and their order follow from the
// piece's structure alone: devices whose pieces differ only in their number of rows reach the same
// collectives in the same order. X of each such node must hold rows of the batch (a tensor that does not
// depend on them would be counted once per device).
//
// Returns the group of every collective node of the piece, in node order (Subgraph::collectives). Does
// nothing and returns an empty list when rows_here == rows_together or when there is no such node.
//
//   for a piece with one BatchNormalization of x[2,3,4,4]:
//   synchronizeBatchNormalization(piece, 2, 5, 0) == {0, 0};  N = 2*16 * 5/2 = 80
//
// Error(kInternal) when 1 <= rows_here <= rows_together does not hold or when N is no integer.
std::vector<GroupId> synchronizeBatchNormalization(Graph& piece, int64_t rows_here, int64_t rows_together,
                                                   GroupId group);

}  // namespace pipeshard
