// What softmaxes and classification losses over a cut axis have in common.
#pragma once

#include <vector>

#include "sharding/spmd/form_table.h"

namespace pipeshard {

// Of x, over `axes` and over the devices of `groups`.
struct ShiftedSum {
  ValueId most;         // the largest; size 1 along the axes
  ValueId shifted;      // x - most
  ValueId exponential;  // exp(x - most)
  ValueId sum;          // of the exponentials; size 1 along the axes
};
ShiftedSum shiftedSum(NodeEmitter& emit, ValueId x, const std::vector<int64_t>& axes,
                      const std::vector<GroupId>& groups);

}  // namespace pipeshard
