// A tensor that lies one way on the devices of one mesh and is needed another way on those of another: what
// is sent by whom to whom.
//
//   before     steps on the sending mesh that bring the tensor from its spec to the one it is sent from
//   pieces     boxes of the tensor, each from one device to one device
//   after      steps on the receiving mesh, from the spec that the pieces make up to the one that is wanted
//
// Which specs lie between is decided by cost. So partial sums are resolved before anything is sent, by
// all-reduces or reduce-scatters, whatever is cheaper in the end; replicated senders share the work (each
// slices its part); and a part that several receivers need alike is sent to each of them, or cut among them,
// sent once and gathered there. Of the devices that hold a piece the least loaded sends it.
//
// Where both meshes have one shape, a way in which every device sends to its counterpart alone is taken if it
// costs at most an eighth more: the costs are no surer, and replicas that have nothing to do with each other
// need fewer connections, and are looked at once for all (sampleOf in ir/program/program_set.h).
//
//   x[8,16] "R,R" on 2 devices, wanted "R,R" on 2, fast links inside, slow ones between:
//     before: nothing;  pieces: rows 0..3 from 0 to 0, rows 4..7 from 1 to 1, received as "S0,R";
//     after: all-gather to "R,R"
//   [8,6] "S0,R" on 2, wanted "R,S0" on 3: 6 pieces of [4,2], each receiver puts two together along axis 0
//
// Costs are integers in nanoseconds. A device sends its pieces one after the other over its link between the
// meshes, and receives likewise, at latency + bytes / bandwidth (rounded up) each, or as the link was
// measured; the transfer lasts as long as the busiest device. Deterministic; thread rules: resharding.h.
#pragma once

#include <vector>

#include "ir/base/data_type.h"
#include "ir/base/ids.h"
#include "ir/base/sharding_spec.h"
#include "sharding/specs/cost_model.h"
#include "sharding/specs/resharding.h"

namespace pipeshard {

struct CrossMeshPiece {
  DeviceId sender;    // in the mesh that sends
  DeviceId receiver;  // in the one that receives
  Shard box;          // in the whole tensor
  friend bool operator==(const CrossMeshPiece&, const CrossMeshPiece&) = default;
};

// How a receiver's shard is made of its pieces: cells of a grid.
struct CrossMeshAssembly {
  std::vector<std::vector<int64_t>> sizes;  // by tensor axis: of the cells along it
  std::vector<int> pieces;                  // by cell, row-major: index into CrossMeshTransfer::pieces
};

struct CrossMeshTransfer {
  // by receiver, then by cell: the order in which both sides of a pair of devices handle theirs
  std::vector<CrossMeshPiece> pieces;
  // Pieces are summands of the whole tensor: a receiver adds its pieces up, and has zero where it gets none.
  bool adds = false;
  IdVector<DeviceId, CrossMeshAssembly> assemblies;  // by receiver
  int64_t bytes = 0;                                 // of all pieces
  int64_t cost_ns = 0;
};

struct CrossMeshPlan {
  ShardingSpec sent;  // no partial sum, but in a direct transfer
  Resharding before;  // from the sender's spec to `sent`
  CrossMeshTransfer transfer;
  ShardingSpec received;  // likewise
  Resharding after;       // from `received` to the receiver's spec
  int64_t cost_ns = 0;    // of all three, one after the other
};

// One side: the model is of its own links.
struct CrossMeshSide {
  LogicalMesh mesh;
  ShardingSpec spec;
  CostModel model;
};

inline constexpr int64_t kAlignedIsWorth = 8;  // an eighth of the cost

// `between`: of one device, to or from the other mesh.
CrossMeshPlan planCrossMesh(const Shape& shape, DataType type, const CrossMeshSide& from,
                            const CrossMeshSide& to, const LinkCost& between);

// One side of many plans, asked once: the specs that a tensor may be sent from, or received in, cheapest
// first.
struct CrossMeshEnd {
  struct Candidate {
    ShardingSpec spec;
    int64_t cost_ns = 0;         // from the side's spec, or to it
    std::vector<int64_t> parts;  // by axis, into how many equal parts it is cut; empty: some are unequal
  };
  Shape shape;
  DataType type = DataType::kFloat32;
  LogicalMesh mesh;
  std::vector<Candidate> candidates;
};
CrossMeshEnd crossMeshEnd(const Shape& shape, DataType type, const CrossMeshSide& side, bool is_sender);
// planCrossMesh's cost_ns of these sides. Where all parts of one side make up parts of the other it takes no
// time that grows with devices: each receiver has equally many equal pieces, each part of the sender is asked
// for equally often, and its holders take turns.
int64_t crossMeshCost(const CrossMeshEnd& from, const CrossMeshEnd& to, const LinkCost& between);

// The transfer alone, of a tensor that is no partial sum on either side.
CrossMeshTransfer planTransfer(const Shape& shape, DataType type, const LogicalMesh& from_mesh,
                               const ShardingSpec& from, const LogicalMesh& to_mesh, const ShardingSpec& to,
                               const LinkCost& between);

// ---- for who makes instructions of a plan: they cut and concatenate along one axis at a time
// ------------------------------------------

// Entries [offset, offset + size) of an axis of what the range before it left.
struct AxisRange {
  int axis = 0;
  int64_t offset = 0;
  int64_t size = 0;
  friend bool operator==(const AxisRange&, const AxisRange&) = default;
};
// Cuts a box out of a shard that holds it; empty when it is the shard. A sender may send several receivers
// the same box: one cut serves all.
//   rows 4..7 and columns 2..3 out of rows 4..7: {1, 2, 2}
std::vector<AxisRange> cutOut(const Shard& held, const Shard& box);

// Operand k < cells is the piece of cell k; operand cells + s the result of step s.
struct Concatenation {
  int axis = 0;
  std::vector<int> operands;
  Shape shape;  // of the result
};
// The last result is the shard; empty when there is one cell.
//   2x2 cells: {axis 1: 0,1}, {axis 1: 2,3}, {axis 0: 4,5}
std::vector<Concatenation> putTogether(const CrossMeshAssembly& assembly);

}  // namespace pipeshard
