// Straight-through estimators whose detach() a file does not show, as files of PyTorch's TorchScript exporter
// do not: x + (f(x) - x).detach() is x + (f(x) - x), and no gradient comes through, where the module has one.
#pragma once

#include <string>

#include "ir/graph/graph.h"

namespace pipeshard {

// A sentence that names the nodes in which a trained value cancels; "" without any:
//   - x + (f(x) - x) in any order, where f has a step that no gradient passes (a rounding, a choice);
//   - x - x and x / x.
// A detach() that the file has (ir/graph/stopped_gradient.h) makes another value: nothing cancels there. To
// be called on the graph as read, behind stopAtDetachedValues, when the user's choice of what is trained is
// known.
std::string straightThroughs(const Graph& graph);

}  // namespace pipeshard
