// ONNX's multi-device annotations (IR version 11): a model lists named configurations of devices, and a node
// says under each of them in which pipeline stage it is. They are hints and never change what a model
// computes. ONNX's own checker does not look at them, so what a file says is checked here.
//
//   annotatePipelineStages(graph, {"pipeshard", {"rank0", "rank1"}}, {0, 0, 1});  // three nodes
//   writeModel(graph, path);                                                      // ir_version 11
//   pipelineStages(readModel(path), "pipeshard") == {0, 0, 1}
//
// The annotations live in Graph::opaque and Node::opaque. Only nodes of the main graph are looked at: what is
// in a branch or a loop is in the stage of the node around it. Node annotations other than the stage are
// carried; sharding specs: device_sharding.h.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

struct DeviceConfiguration {
  std::string name;  // not empty; unique in a model
  // one name per device, at least one device; all "" where the model gives no names
  std::vector<std::string> devices;
  friend bool operator==(const DeviceConfiguration&, const DeviceConfiguration&) = default;
};

// Adds the configuration to the model and `stages[i]` to node i (-1: this node gets none), and raises
// ir_version to 11. A configuration of that name that is already there is replaced, with everything that
// nodes say under it; others stay. So annotations of other kinds under the same name come after this call.
// Nodes that stand for an initializer (they are written as one) get no stage.
void annotatePipelineStages(Graph& graph, const DeviceConfiguration& configuration,
                            const std::vector<int>& stages);

// The configurations of the model, in its order. Throws Error(kBadModel) for one without a name, a name given
// twice, no device or more than 2^20, or a number of device names that is not the number of devices.
std::vector<DeviceConfiguration> deviceConfigurations(const Graph& graph);

// The stage of every node under the configuration of that name; -1 where the node gives none. Throws
// Error(kBadModel) for contradictions, under whichever configuration: those of deviceConfigurations, a node
// that names a configuration the model does not have or one of them twice, a negative stage; and when the
// model has no configuration `configuration`.
std::vector<int> pipelineStages(const Graph& graph, const std::string& configuration);

}  // namespace pipeshard
