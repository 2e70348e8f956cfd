// A tensor that goes from the devices of one mesh to those of another as it lies on both sides, without steps
// on either: wherever no way is to be chosen, as between devices that share rows, which hold and take just
// theirs. A partial sum (over mesh axis 0, of a tensor that is not cut) travels as one: each sender's summand
// becomes part of one of the receiver's summands, on every device that holds it, or goes to all devices where
// the total is wanted; devices that hold the same summand share the sending.
//
//   rows "S0" on 2 devices, wanted "S0" on 3, 6 rows:  0 to 0 (2 rows), 0 to 1 (1), 1 to 1 (1), 1 to 2 (2)
//   "-;P0" on 3 devices, wanted "-;P0" on 2:  0 to 0, 2 to 0, where they are added, and 1 to 1
//   "-" on 1 device, wanted "-;P0" on 2:  0 to 0; 1 has zero
//
// Other partial sums are resolved first, as by planCrossMesh. Deterministic; thread rules: resharding.h.
#pragma once

#include "sharding/specs/cross_mesh.h"

namespace pipeshard {

// `between`: as in planCrossMesh.
CrossMeshPlan planDirectTransfer(const Shape& shape, DataType type, const CrossMeshSide& from,
                                 const CrossMeshSide& to, const LinkCost& between);

}  // namespace pipeshard
