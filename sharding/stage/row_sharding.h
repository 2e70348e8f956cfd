// The sharding of devices that share the rows of every microbatch, and nothing else: what follows from the
// batch alone, so there is nothing to choose and nothing to solve.
//
// Over axis 0 of the mesh whatever depends on the batch is cut along it, between rows; what is a sum over it
// (a gradient, a loss) is a partial sum from where it is made, and stays one as long as operators let it
// pass; weights, states, updates and prologues are replicated. Over further axes all devices do the same. So
// collectives stand only where an operator needs all rows (batch normalisation), or all parts of a sum.
//
//   y = MatMul(x[8,4], w), l = ReduceSum(y), g = l * 2   on mesh [2]:
//     y "S0,R" by rows, l "-;P0", g "-;P0" passed on;  w "R,R", and its gradient "R,R;P0"
//
// It is one for the whole training graph, so that stages on equal meshes keep every value alike.
#pragma once

#include "ir/graph/training_graph.h"
#include "sharding/batch/batch_dependence.h"
#include "sharding/stage/stage_sharding.h"

namespace pipeshard {

// `batch`: followBatch(training). `mesh`: with the rows of the graph (LogicalMesh::rows), at least as many as
// devices along axis 0. All nodes have their strategies, all values their specs.
StageSharding rowSharding(const TrainingGraph& training, const BatchDependence& batch,
                          const LogicalMesh& mesh);

}  // namespace pipeshard
