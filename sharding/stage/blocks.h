// What a stage's sharding does to the repeated blocks of its model, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/stage/shard_stage.h"

namespace pipeshard {

// What the stage's repeated blocks do, for people.
struct BlockSummary {
  std::string first;  // name of the block's first node
  size_t nodes = 0;   // of one block, forward
  size_t repeats = 1;
  // by mesh axis: "data-parallel",
  // "column-parallel then row-parallel, 2 all-reduces forward, 2 all-reduces backward"
  std::vector<std::string> patterns;
};
// The longest run of structurally equal blocks of forward nodes, as its middle block does it; the whole stage
// if nothing repeats.
BlockSummary summarizeBlocks(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                             const CostModel& model, const ShardStageOptions& options,
                             const ShardingResult& result);

}  // namespace pipeshard
