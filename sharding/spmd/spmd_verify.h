// The proof that local pieces do together what the piece does.
#pragma once

#include <vector>

#include "sharding/spmd/spmd_rewrite.h"

namespace pipeshard {

// Proves of all devices' pieces together, by device: collectives meet (same kind, group, axis, reduction;
// part sizes fit), every operator reads what its strategy needs and every value ends as it is kept, step by
// step, so that no partial sum is read as a value; all shapes are the shards of these specs; constants hold
// this device's part. Throws Error(kInternal) naming device and node.
void verifyLocalPieces(const Graph& piece, const PieceSharding& sharding,
                       const IdVector<DeviceId, LocalPiece>& devices);

}  // namespace pipeshard
