// One device's part of one operator. Internal to sharding.
#pragma once

#include <optional>
#include <vector>

#include "sharding/spmd/exchange_forms.h"
#include "sharding/spmd/strategy_builder.h"

namespace pipeshard {

// The device's part of a constant; of a partial sum the first device holds all of it, the others zeros.
Constant localConstant(const Constant& constant, const ShardingSpec& spec, const LogicalMesh& mesh,
                       DeviceId device);

// The input that holds the sizes of output 0, if there is one. Its content follows the output's local shape.
std::optional<size_t> sizesInput(const Node& node);

// What the device multiplies output `output` with, a mean over its part of some factors: the part's share of
// the whole.
double meanShare(const StrategyBuilder& strategies, const LogicalMesh& mesh, DeviceId device,
                 const std::vector<AxisUse>& uses, size_t output);

// Appends the nodes of context.device for `node` (of context.whole) under `strategy`: the operator with local
// shapes, or its exchange form, then the shares of means. `inputs`: local tensors in the strategy's specs.
// Returns the outputs in the strategy's specs; invalid ids for absent ones. `builder` of the strategies is
// the node's.
std::vector<ValueId> emitLocalNode(GraphBuilder& builder, const StrategyBuilder& strategies,
                                   const ExchangeContext& context, const Node& node, const Strategy& strategy,
                                   std::vector<ValueId> inputs);

}  // namespace pipeshard
