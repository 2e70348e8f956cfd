// Who makes and who reads the values of a stage, and which of them share one kept spec. Internal to
// shard_stage.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/graph/weight_copies.h"

namespace pipeshard {

struct ValueReader {
  NodeId node;
  std::vector<size_t> positions;  // of the node's inputs
};

struct StageValue {
  bool held = false;      // a node of the stage makes or reads it
  bool constant = false;  // each use takes what it needs, at no cost
  NodeId producer;        // a node of the stage; invalid: from outside
  size_t output = 0;
  std::vector<ValueReader> readers;  // nodes of the stage, in order
  // whose kept spec this one has: itself, or the first held one of its group (stage_sharding.h)
  ValueId shares;
  bool fixed_replicated = false;
  bool partial_allowed = false;
  bool persistent = false;  // held from step to step: parameters, states, weights; or all of it: copies
};

// By value index. `replicated`: as in ShardStageOptions.
std::vector<StageValue> stageValues(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                    const std::vector<ValueId>& replicated);

// By value index: is it a weight that passes read in copies alone?
std::vector<bool> onlyCopied(const TrainingGraph& training);

// Does the node run once per step: an update, or the copy of a weight?
inline bool runsOnce(const TrainingGraph& training, NodeId node) {
  return training.node_phase[node.index()] == Phase::kUpdate || isWeightCopy(training, node);
}
// The number of runs of a node per step.
inline int64_t runsPerStep(const TrainingGraph& training, NodeId node, int64_t microbatches) {
  return runsOnce(training, node) ? 1 : microbatches;
}

}  // namespace pipeshard
