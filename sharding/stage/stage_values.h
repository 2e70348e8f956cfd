// Who makes and who reads the values of a stage, and which of them share one kept spec. Internal to
// shard_stage.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/training_graph.h"

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
  bool persistent = false;  // held from step to step: parameters, states, weights
};

// By value index. `replicated`: as in ShardStageOptions.
std::vector<StageValue> stageValues(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                    const std::vector<ValueId>& replicated);

// The number of runs per step of the nodes of a phase.
inline int64_t runsPerStep(Phase phase, int64_t microbatches) {
  return phase == Phase::kUpdate ? 1 : microbatches;
}

}  // namespace pipeshard
