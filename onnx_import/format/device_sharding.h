// Sharding specs as ONNX's multi-device annotations (IR version 11), beside the pipeline stages of
// device_configuration.h: how the inputs and outputs of a node lie on the devices of its stage.
//
//   // one MatMul, x w -> y, on two devices; w and y in columns
//   annotatePipelineStages(graph, {"pipeshard", {"rank0", "rank1"}}, {0});
//   annotateShardings(graph, "pipeshard", {{LogicalMesh{{2}}, {0, 1}}}, {{{R,R}, {R,S0}}, {{R,S0}}});
//   nodeShardings(readModel(path), "pipeshard", {{LogicalMesh{{2}}, {0, 1}}})  // gives the same back
//
// What the format says of a tensor: into how many shards each axis is cut, and for each shard (row-major over
// the cut axes, in the order in which they are listed) the device that holds it, or a group of devices that
// hold the same. It knows no meshes: specs are found again by the devices of each shard, on the mesh that the
// reader gives. It knows no partial sums, and a tensor that no node makes has no place of its own: a weight
// lies as the nodes that read it say.
//
// Shards need not be equal. ONNX leaves the sizes to the runtime; ours are shares: share i of n elements in k
// is [i n / k, (i+1) n / k) (ir/base/sharding_spec.h), and an axis that several mesh axes cut is a share of a
// share.
//
// A mesh axis of one device cuts nothing and is not written: "S0,R" on a mesh 1x4 comes back as "R,R".
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/graph.h"

namespace pipeshard {

// The devices of a stage: device i of `mesh` is number devices[i] of the device configuration. Without
// devices: of a stage of which nothing is said.
struct StageDevices {
  LogicalMesh mesh;
  std::vector<int> devices;
};

// By position; nothing where nothing is said (and for absent inputs and outputs). Outputs: as the value lies
// once the node is done, which may differ from how the operator gives it. Inputs: as the operator needs it.
struct NodeSharding {
  std::vector<std::optional<ShardingSpec>> inputs;
  std::vector<std::optional<ShardingSpec>> outputs;
  friend bool operator==(const NodeSharding&, const NodeSharding&) = default;
};

// Adds the specs to the nodes that annotatePipelineStages gave a stage under this configuration (the graph's
// ir_version is 11 then). By node; `stages` by stage. A spec must fit its value (specFault). Gives the names
// of the values of which something could not be said, each once: partial sums, and values that one node reads
// in two specs. These are left out.
std::vector<std::string> annotateShardings(Graph& graph, const std::string& configuration,
                                           const std::vector<StageDevices>& stages,
                                           const std::vector<NodeSharding>& nodes);

struct ReadShardings {
  std::vector<NodeSharding> nodes;
  std::vector<std::string> notes;  // what was skipped and why, for people; at most a few, then how many more
  size_t skipped = 0;
};

// By stage: the devices that the shardings of its nodes list, ascending; nodes without a stage count to stage
// 0. For a reader that does not know them. Errors as nodeShardings, as far as it looks.
std::vector<std::vector<int>> shardedDevices(const Graph& graph, const std::string& configuration);

// What the nodes say under a configuration; a node without stage is in the only one, if `stages` has one. To
// be called on a model as it was read, once inferShapes has found its shapes (sizes may be unknown): later
// passes change what nodes read, but not what is said there. Skipped with a note: what is no spec on the
// stage's mesh (other devices, other orders, axes that are fused from several), what the tensor is too small
// for, a tensor of unknown shape, nodes of other stages. Throws Error(kBadModel) naming node and tensor for
// contradictions: those of pipelineStages, a tensor that is not the node's or is described twice, an axis
// that it does not have or that is listed twice, a number of shards below 1, other devices than shards, a
// device that the configuration does not have.
ReadShardings nodeShardings(const Graph& graph, const std::string& configuration,
                            const std::vector<StageDevices>& stages);

// One spec for each value of which something is said, by name: what its maker says, or else what its readers
// say if they agree. As constraints of a plan.
std::map<std::string, ShardingSpec> valueShardings(const Graph& graph,
                                                   const std::vector<NodeSharding>& nodes);

}  // namespace pipeshard
