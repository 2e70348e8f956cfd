// The collectives of the shared memory transport, as messages on the collective channel of shm::Endpoint.
//
// allReduce is reduce-scatter and all-gather: member k reduces the k-th part of every segment, reading the
// inputs of all members in group order straight out of their arenas, and the others copy the result. Segment
// s+1 is announced before segment s is reduced, so that members need not wait for each other at every
// segment. Because exactly one member computes each element, in group order, all members get the same bits,
// whatever the size and the number of ranks that are late. Small ones skip the second half: everybody gets
// all inputs and reduces everything, in the same order.
#pragma once

#include <cstddef>

#include "ir/base/data_type.h"
#include "transport/collectives/communicator.h"
#include "transport/shared/shared_endpoint.h"

namespace pipeshard::shm {

// Arguments as in Communicator. The group has been checked.
void allReduce(Endpoint& endpoint, const Group& group, DataType type, Reduction reduction, const void* input,
               void* output, size_t count);
void allGather(Endpoint& endpoint, const Group& group, DataType type, const void* input, void* output,
               size_t count);
void reduceScatter(Endpoint& endpoint, const Group& group, DataType type, Reduction reduction,
                   const void* input, void* output, size_t count);
void allToAll(Endpoint& endpoint, const Group& group, DataType type, const void* input, void* output,
              size_t count);
void broadcast(Endpoint& endpoint, const Group& group, DataType type, int root, void* data, size_t count);
void barrier(Endpoint& endpoint, const Group& group);

}  // namespace pipeshard::shm
