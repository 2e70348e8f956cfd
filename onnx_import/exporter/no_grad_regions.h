// torch.no_grad(): what is computed there goes on, its gradient does not. (Teachers, targets, statistics.)
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// torch.export makes code of its own of what is computed under torch.no_grad(), and the exporter writes
// beside each node which code it is from (tracedRegion in ir/graph/exporter_marks.h). Every value that leaves
// such a region, and that a parameter of the module goes into, gets a stop of the gradient
// (ir/graph/stopped_gradient.h), whose result has the value's name: also a graph output, which a loss may be
// made of. Returns how many. To be called on the graph as read.
//
// Error(kBadModel) where a reader of such a value means another one: the exporter's optimizer has merged two
// that are equal. Not seen is what a file does not say: torch.inference_mode(), the TorchScript exporter, and
// a module that was exported under torch.no_grad() as a whole.
int stopAfterNoGrad(Graph& graph);

}  // namespace pipeshard
