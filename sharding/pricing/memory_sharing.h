// What of a pass lies where something else of it does. Internal to priced_stage.
#pragma once

#include <functional>
#include <set>
#include <vector>

#include "sharding/stage/stage_context.h"

namespace pipeshard {

// Along mesh axes of one device there is nothing to reshard.
inline bool isSame(const LogicalMesh& mesh, const ShardingSpec& a, const ShardingSpec& b) {
  return mesh.deviceCount() == 1 || a == b;
}

// A pass of a sharded part of a model, as a subgraph.
struct PricedPass {
  const StageContext& context;
  const StageSharding& sharding;
  std::function<bool(NodeId)> has;           // the node runs in it
  const std::set<ValueId>& in_accumulators;  // what is computed in the accumulators of gradients
};

// Of `uses`, which are in the pass: what a node makes lies where an input does that it names or overwrites,
// if nobody reads that later; it has no bytes of its own then, and the other's use lasts longer. `buffers`:
// made in the pass for others, or by others for it; they may be overwritten, but overwrite nothing.
void shareMemory(const PricedPass& pass, std::set<ValueId> buffers, std::vector<MemoryUse>& uses);

}  // namespace pipeshard
