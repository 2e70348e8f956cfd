// The collectives of any group as messages on the collective channel of mesh::MessageMesh.
//
// Sums are taken as in shared memory: exactly one member computes each element, in group order, so all
// members get the same bits, and the same as there. allReduce is reduce-scatter by direct exchange and
// all-gather, segment by segment; the next segment is under way while one is reduced. Small ones skip the
// second half: everybody gets all inputs and reduces everything.
#pragma once

#include <cstddef>

#include "ir/base/data_type.h"
#include "transport/collectives/communicator.h"
#include "transport/collectives/message_mesh.h"

namespace pipeshard::mesh {

// Arguments as in Communicator. The group has been checked.
void allReduce(MessageMesh& mesh, const Group& group, DataType type, Reduction reduction, const void* input,
               void* output, size_t count);
void allGather(MessageMesh& mesh, const Group& group, DataType type, const void* input, void* output,
               size_t count);
void reduceScatter(MessageMesh& mesh, const Group& group, DataType type, Reduction reduction,
                   const void* input, void* output, size_t count);
void allToAll(MessageMesh& mesh, const Group& group, DataType type, const void* input, void* output,
              size_t count);
void broadcast(MessageMesh& mesh, const Group& group, DataType type, int root, void* data, size_t count);
void barrier(MessageMesh& mesh, const Group& group);

}  // namespace pipeshard::mesh
