// A box of a tensor, x[:, :, 2:5], that an exporter reads or writes by the place of every element: one of the
// forms of row_forms.h, for any number of axes.
#pragma once

#include "ir/graph/graph.h"

namespace pipeshard {

// Writes GatherND and ScatterND (reduction "none") whose indices are a grid of the places along each axis, of
// which one axis at least is taken whole and in order, without their indices: GatherND of three axes and
// more, ScatterND of two and more into data of three and more. The smaller are in row_forms.h, which comes
// after this. Returns how many.
//   GatherND(x, grid)            ->  x, or Slice or Gather of it along each axis that is not whole
//   ScatterND(x, grid, updates)  ->  updates, where the grid is all of x; else Concat(x[:2], updates, x[5:])
//                                    along an axis that is not whole, and where its places are no run
//                                    Gather(Concat(x, updates), which of them)
// Not for places that come twice: which of their updates holds is not said.
//
// An axis of one is whole where its only place is read or written. So a write of row 0 alone looks in a batch
// of one row like one of all rows. That is told by the same model for more rows
// (sharding/batch/time_compare.h).
int writeBoxes(Graph& graph);

}  // namespace pipeshard
