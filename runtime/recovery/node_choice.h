// On which of the nodes that are there the ranks of a plan are to run.
#pragma once

#include <optional>
#include <vector>

#include "ir/base/ids.h"

namespace pipeshard {

struct LiveNode {
  int number = 0;   // in the pool
  int devices = 0;  // one rank each
};

// The number of each rank's node. `planned`: by the plan's cluster. Ranks that were planned for one node stay
// together where that can be, on the node of their number if it is there; else they go where they fit, and
// where no way keeps them together, one after the other onto the devices that there are. Nothing if all nodes
// together have too few devices.
std::optional<IdVector<RankId, int>> chooseNodes(const IdVector<RankId, int>& planned,
                                                 const std::vector<LiveNode>& live);

}  // namespace pipeshard
