// The forward nodes of a training graph in order, and what choosing stages needs to know of each. Internal to
// partition/.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/training_graph.h"
#include "partition/layers/layers.h"
#include "sharding/specs/cost_model.h"

namespace pipeshard {

// All vectors by position in `nodes`.
struct Chain {
  const TrainingGraph& training;
  std::vector<NodeId> nodes;
  std::vector<int64_t> flops;            // forward
  std::vector<int64_t> backward_flops;   // of the backward nodes that differentiate it
  std::vector<int64_t> parameter_bytes;  // of the parameters that it is the first to read, itself or a copy
  std::vector<int64_t> cut_bytes;        // layers.h
  std::vector<size_t> counting;          // countingPositions in layers.h
  std::vector<bool> beside_statistics;   // endsBesideStatistics in layers.h
  int64_t count() const { return std::ssize(nodes); }
};

// By position: may a stage end behind it? Not where a copy of a weight or a running statistic would be cut
// off from its reader.
std::vector<bool> stageEnds(const Chain& chain);

// formLayers, where running statistics let stages end. 1 <= layers <= count().
LayerEnds layersOf(const Chain& chain, int layers);

// Error(kConfiguration) for a model without forward nodes. The training graph must outlive the chain.
Chain chainOf(const TrainingGraph& training);

// By position, nanoseconds that a device takes for the node and the backward nodes that differentiate it, one
// microbatch, as the model says. What a copy of a weight takes counts at its first reader, here and below.
std::vector<int64_t> nodeTimes(const Chain& chain, const CostModel& model);

// By position, bytes: what the node makes and the backward pass reads again, of one microbatch; and of the
// parameters that it is the first to read the value, the gradient and the optimizer's states.
std::vector<int64_t> nodeSizes(const Chain& chain);

// The sum of amounts[first..last], both inclusive.
int64_t sumOver(const std::vector<int64_t>& amounts, int64_t first, int64_t last);

// By layer the sum of amounts.
IdVector<LayerId, int64_t> sumsByLayer(const std::vector<int64_t>& amounts, const LayerEnds& ends);

}  // namespace pipeshard
