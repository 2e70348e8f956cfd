// detach(): a value goes on, its gradient does not. (Straight-through estimators, vector quantisation,
// targets.)
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// By value: a gradient of it passes to a parameter, also to one that the exporter has folded into a constant.
// (Of buffers and other constants, such as the angles of rotary positions, none is trained; through integers
// and booleans none passes.)
std::vector<bool> dependsOnParameters(const Graph& graph);

// PyTorch's exporter writes an Identity for each detach(), and says so beside it; they become stops of the
// gradient (ir/graph/stopped_gradient.h). Returns how many. To be called on the graph as read.
//
// Error(kBadModel) where a call mentions a detach() that is not in the file: the exporter's optimizer removes
// Identities, and merges what is equal but for them. Also where it has dropped or merged what a call mentions
// (ir/graph/lost_calls.h), of a parameter, on a line of code that detaches. Two equal values that are merged
// without such a line are the same file with detach() and without it: exporterTraps names them.
int stopAtDetachedValues(Graph& graph);

}  // namespace pipeshard
