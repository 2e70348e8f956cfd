// Building the training graph: gradients and updates behind a forward graph. Graph to Graph, no protobuf.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/graph/training_graph.h"
#include "ir/plan/optimizer.h"

namespace pipeshard {

// Error(kBadModel) naming the parameter, if one is neither float32 nor float64.
void requireTrainableTypes(const Graph& graph);

// A microbatch's forward graph with what the time-axis analysis found; see ir/graph/training_graph.h for the
// meaning.
struct ForwardGraph {
  Graph graph;   // prepared, for one microbatch
  ValueId loss;  // scalar share of the loss; invalid (without an optimizer only): none
  std::vector<BatchInput> inputs;
  // The nodes that parts depend on are in the graph, and the loss depends on none of them (splitTimeAxis).
  std::vector<PrologueTotal> totals;
  int64_t microbatches = 1;
  std::vector<ModelOutput> outputs = {};  // without an optimizer only
};

// What updates do beside the optimizer; 0: nothing.
struct UpdateExtras {
  double clip_norm = 0;   // TrainingGraph::clip_norm
  double clip_value = 0;  // every element of a gradient is clipped to [-clip_value, clip_value] before
  double ema = 0;         // the decay of a moving average of every trained parameter
  LossScaling loss_scaling = {};  // TrainingGraph::loss_scaling; the norm is taken then
};

// Whether a gradient rule for the operator is registered, or it has no gradient by nature (Shape, Equal,
// Floor, ...). A node with neither is an error only on a path from a parameter to the loss; if it has an ONNX
// function body, it is better expanded before (PrepareOptions::supported).
bool hasGradientRule(std::string_view domain, std::string_view op_type);

// The training graph's nodes are in the order prologue, forward, backward, update; forward nodes that
// neither the loss nor ForwardGraph::outputs need are gone; its graph outputs are those, the parts of totals,
// the updated forward states, the gradient parts and what the updates give. Value names:
// "<value>_grad" ("<parameter>_grad.<k>" for several parts), "<parameter>.gradient", "<parameter>.<state>",
// "<parameter>.updated", "<parameter>.<state>.updated", "step". Backward nodes are called "<forward
// node>_grad/<operator>" and carry its metadata.
//
// Forward states are the running statistics of the batch normalisations that the loss needs, in training
// mode: forward_states.h.
//
// Appends backward nodes (reverse mode; accumulation of several uses by Sum/Add; only where a parameter is
// reached), splits them into input and weight parts, and appends the update nodes. An operator without
// gradient on a path from a parameter to the loss: Error(kBadModel) naming node and operator. Likewise
// running statistics that something else reads, a parameter without elements, and a product of such a tensor
// (an axis of size 0). Without an optimizer (kNone): the forward pass alone;
// parameters have no gradients, running statistics stay as they are.
// `groups`: parameters whose update has other hyperparameters.
TrainingGraph buildTrainingGraph(ForwardGraph forward, const OptimizerSpec& optimizer,
                                 const std::vector<ParameterGroup>& groups = {},
                                 const UpdateExtras& extras = {});

}  // namespace pipeshard
