// What softmaxes and classification losses over a cut axis have in common.
#pragma once

#include <vector>

#include "sharding/spmd/form_table.h"

namespace pipeshard {

// Of x, over `axes` and over the devices of `groups`: max = most(x).
struct ShiftedSum {
  ValueId shifted;      // x - max
  ValueId exponential;  // exp(x - max)
  ValueId sum;          // of the exponentials; size 1 along the axes
};
ShiftedSum shiftedSum(NodeEmitter& emit, ValueId x, const std::vector<int64_t>& axes,
                      const std::vector<GroupId>& groups);

}  // namespace pipeshard
