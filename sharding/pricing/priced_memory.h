// What a part of a model holds where its passes run as they are emitted: a subgraph each for forward pass,
// input half and weight half of the backward pass, or for forward and backward pass. What goes into a
// subgraph or comes out of it has a buffer from the subgraph's beginning to its end; what is between its
// nodes is in the workspace, which is there while it runs. Internal to priced_stage.
#pragma once

#include <map>
#include <vector>

#include "sharding/pricing/priced_stage.h"
#include "sharding/stage/stage_context.h"

namespace pipeshard {

// Fills in the bytes of `result`. `phases`, `end_of`: as priceStageInWays, by value. `reshardings`: those of
// the sharding (stage_price.h).
void addPricedMemory(const StageContext& context, const std::vector<Phase>& phases,
                     const std::map<ValueId, const StageEnd*>& end_of, const StageSharding& sharding,
                     const std::vector<StageResharding>& reshardings, PricedStage& result);

}  // namespace pipeshard
