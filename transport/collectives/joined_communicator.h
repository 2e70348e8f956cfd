// Shared memory within a node and another transport between nodes, as one communicator.
#pragma once

#include <memory>
#include <vector>

#include "transport/collectives/communicator.h"

namespace pipeshard {

// For rank `rank` of node_of_rank.size() ranks, of which node_of_rank[r] is the node of rank r. `on_node` has
// the ranks of this node, in ascending order, as its ranks 0..k-1; null when this rank is alone there.
// `between` has all ranks. Each pair of ranks uses on_node when both are on this node, else between; a
// collective uses on_node when its whole group is on this node, else between. Waits of either one move the
// other one's sends on.
//
// Make the arena of a SharedMemoryCommunicator before it is handed over, and open it with the node's ranks as
// names, so that messages of both speak of the same ranks: for node_of_rank {0, 0, 1, 1}, rank 3 opens rank 1
// of 2 with names {2, 3}.
std::unique_ptr<Communicator> joinCommunicators(const IdVector<RankId, int>& node_of_rank, RankId rank,
                                                std::unique_ptr<Communicator> on_node,
                                                std::unique_ptr<Communicator> between);

// The ranks on the node of `rank`, ascending: the names for on_node.
std::vector<RankId> ranksOnNode(const IdVector<RankId, int>& node_of_rank, RankId rank);

}  // namespace pipeshard
