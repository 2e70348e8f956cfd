// Megatron-LM's way of cutting, as limits: over mesh axis 0 the batch, over mesh axis 1 matrix products by
// columns or rows of their weights, with what lies between two products (heads, activations) cut as they
// come, and the residual stream with its normalisations whole. Updates and optimizer states are cut as the
// weights are; with `cut_updates` over axis 0 as well, where their sizes allow it (its distributed optimizer:
// gradients are reduce-scattered, new weights all-gathered). Internal to methods.
#pragma once

#include <memory>
#include <vector>

#include "sharding/batch/batch_dependence.h"
#include "sharding/stage/sharding_problem.h"

namespace pipeshard {

ProblemLimits megatronLimits(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                             std::shared_ptr<const BatchDependence> batch, bool cut_updates);

}  // namespace pipeshard
