// What was decided for one stage: a strategy for every node, a spec for every value. A side table over a
// training graph.
//
// A value that passes make, or that comes from outside, is *kept* in one spec: the producer's natural output
// spec, then one resharding to the kept spec, then for each reading node one resharding from the kept spec to
// what the node's strategy needs (two positions of one node that need the same share it; different nodes do
// not). So costs add up over edges exactly.
//
// Gradients: a value of Parameter::gradient_parts is kept as the accumulator holds it, the same for all parts
// of a parameter. It may be a partial sum: then it is synchronised once, after the last microbatch, to the
// spec in which Parameter::gradient is kept. A parameter's value, its states and what the update makes of
// them are kept alike: `updated` like `value`. ZeRO is nothing else than cut specs there. The loss is kept
// replicated or partial. Prologue values, totals and the step are replicated.
#pragma once

#include <vector>

#include "ir/base/sharding_spec.h"
#include "ir/graph/training_graph.h"
#include "sharding/spmd/strategy.h"

namespace pipeshard {

struct StageSharding {
  LogicalMesh mesh;
  std::vector<Strategy> strategies;  // by node index; of nodes of other stages: empty
  std::vector<ShardingSpec> kept;    // by value index; of values that the stage does not hold: no axes
};

// Throws Error(kInternal) naming the first fault: a strategy that its node does not have, a spec that the
// tensor cannot have, a partial sum kept where the text on top does not allow it (a parameter, a state, a
// total), parts of a gradient kept differently.
void verifyStageSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                         const StageSharding& sharding);

}  // namespace pipeshard
