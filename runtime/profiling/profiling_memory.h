// What copies take on this machine. Times are nanoseconds.
#pragma once

#include "ir/cluster/cluster.h"

namespace pipeshard {

// Copies of growing size: ns by bytes read and written.
CostCurve measureMemory();

}  // namespace pipeshard
