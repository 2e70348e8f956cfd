// The SPMD rewrite: a piece of a stage (a subgraph with whole shapes) becomes the graph that one device runs,
// with local shapes and explicit collectives. Every device gets its own: shards may be uneven.
//
//   piece, on mesh [2]:  y = MatMul(x[8,16], w[16,32]);  strategy "0:k"; x kept "R,S0", w "S0,R", y "R,R"
//   each device:         y_part = MatMul(x[8,8], w[8,32]);  y = AllReduce(y_part) {group}
//
// All devices of the mesh get the same nodes up to shapes and constants, so that their collectives meet.
#pragma once

#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"
#include "sharding/specs/device_differences.h"
#include "sharding/specs/resharding_emit.h"
#include "sharding/spmd/strategy.h"

namespace pipeshard {

struct PieceSharding {
  LogicalMesh mesh;
  CostModel model;                   // decides the steps of reshardings
  std::vector<Strategy> strategies;  // by node index of the piece
  // by value index of the piece; constants: anything (each use takes what it needs)
  std::vector<ShardingSpec> kept;
};

struct LocalPiece {
  // inputs and outputs as the piece's, in their kept specs' local shapes, names as in the piece
  Graph graph;
  std::vector<GroupId>
      collectives;  // the group of every collective node, in node order (Subgraph::collectives)
  // by local node: index of the piece's node that it belongs to; not descending
  std::vector<size_t> origins;
  MeshGroups groups;  // as they were given
  // Devices with equal coordinates along the marked axes have equal graphs but for `own`; the same marks on
  // all devices.
  MeshAxes differs_along;
  std::vector<DeviceConstant> own;
};

// Constants are cut when the piece is rewritten; uses of one spec share the part. Inputs that hold the sizes
// of an output (Reshape, Expand, ConstantOfShape, GatherGrad, GatherElementsGrad) get the local sizes.
// Functions that the piece calls come along unchanged: their bodies hold for any shape. Nodes of reshardings
// and the shares of means are marked in their metadata (work_count.h). Error(kInternal) when a strategy's
// specs do not fit the values.
LocalPiece rewriteForDevice(const Graph& piece, const PieceSharding& sharding, DeviceId device,
                            const MeshGroups& groups);

}  // namespace pipeshard
