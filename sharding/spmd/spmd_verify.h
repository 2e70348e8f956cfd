// The proof that local pieces do together what the piece does.
#pragma once

#include <map>

#include "sharding/spmd/spmd_rewrite.h"

namespace pipeshard {

// By device; it has the first one, and of devices that have equal graphs (LocalPiece::differs_along) at
// least one: the others' are it with their own constants (LocalPiece::own).
using DevicePieces = std::map<DeviceId, const LocalPiece*>;

// Proves of all devices' pieces together: collectives meet (same kind, group, axis, reduction;
// part sizes fit), every operator reads what its strategy needs and every value ends as it is kept, step by
// step, so that no partial sum is read as a value; all shapes are the shards of these specs; constants hold
// this device's part. Throws Error(kInternal) naming device and node.
void verifyLocalPieces(const Graph& piece, const PieceSharding& sharding, const DevicePieces& devices);
// Of every device.
void verifyLocalPieces(const Graph& piece, const PieceSharding& sharding,
                       const IdVector<DeviceId, LocalPiece>& devices);

}  // namespace pipeshard
