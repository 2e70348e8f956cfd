// The SPMD rewrite: a piece of a stage (a subgraph with whole shapes) becomes the graph that one device runs,
// with local shapes and explicit collectives. Every device gets its own: shards may be uneven.
//
//   piece:   y = MatMul(x[8,16], w[16,32]);  strategy "0:k", x kept "R,S0", w kept "S0,R", y kept "R,R", mesh
//                                            [2]
//   device:  y_part = MatMul(x[8,8], w[8,32]);  y = AllReduce(y_part) {group}
//
// All devices of the mesh get the same nodes up to shapes and constants, so that their collectives meet.
#pragma once

#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "sharding/specs/resharding.h"
#include "sharding/spmd/strategy.h"

namespace pipeshard {

struct PieceSharding {
  LogicalMesh mesh;
  CostModel model;                   // decides the steps of reshardings
  std::vector<Strategy> strategies;  // by node index of the piece
  std::vector<ShardingSpec>
      kept;  // by value index of the piece; constants: anything (each use takes what it needs)
};

struct LocalPiece {
  Graph graph;  // inputs and outputs as the piece's, in their kept specs' local shapes, names as in the piece
  std::vector<int> collectives;  // the group of every collective node, in node order (Subgraph::collectives)
  std::vector<int> origins;  // by local node: index of the piece's node that it belongs to; not descending
  MeshGroups groups;         // as they were given
};

// Constants are cut when the piece is rewritten; uses of one spec share the part. Inputs that hold the sizes
// of an output (Reshape, Expand, ConstantOfShape, GatherGrad, GatherElementsGrad) get the local sizes.
// Functions that the piece calls come along unchanged: their bodies hold for any shape. Nodes of reshardings
// and the shares of means are marked in their metadata (work_count.h). Error(kInternal) when a strategy's
// specs do not fit the values.
LocalPiece rewriteForDevice(const Graph& piece, const PieceSharding& sharding, int device,
                            const MeshGroups& groups);

// Proves of all devices' pieces together, by device: collectives meet (same kind, group, axis, reduction;
// part sizes fit), every operator reads what its strategy needs and every value ends as it is kept, step by
// step, so that no partial sum is read as a value; all shapes are the shards of these specs; constants hold
// this device's part. Throws Error(kInternal) naming device and node.
void verifyLocalPieces(const Graph& piece, const PieceSharding& sharding,
                       const std::vector<LocalPiece>& devices);

// What running a device's piece once takes, counted from its nodes: on the last device of the mesh, which has
// the largest shards, that is strategyCost and planResharding, summed. `groups` are the device's. What
// exchange forms of several nodes share is counted once.
struct WorkCount {
  double flops = 0;
  int64_t compute_ns = 0;
  int64_t communication_ns = 0;
  std::vector<int64_t> collective_bytes =
      std::vector<int64_t>(4);                                 // by CollectiveKind: the B of cost_model.h
  std::vector<int64_t> collectives = std::vector<int64_t>(4);  // how many
};
WorkCount countWork(const Graph& local, const LogicalMesh& mesh, const MeshGroups& groups,
                    const CostModel& model);

// The work in its order: computing, the collective behind it, and so on. The last part has no collective.
// What a device does takes time, so this has what brings values into place, too, which no strategy is charged
// for (countWork).
struct WorkPart {
  int64_t compute = 0;   // nanoseconds
  int group = -1;        // of the program's groups; -1: no collective follows
  int64_t exchange = 0;  // nanoseconds
  int64_t bytes = 0;     // of the collective
};
// group_sizes[g]: the members of group g. The model's links: groupModel.
std::vector<WorkPart> workParts(const Graph& local, const std::vector<int>& group_sizes,
                                const CostModel& model);

}  // namespace pipeshard
