// The specs in which a stage may keep a parameter that several of its layers read (tied embeddings), and the
// parts of its gradient. All layers keep it in the same spec, so that what they cost alone adds up. Internal
// to partition/.
#pragma once

#include <optional>
#include <vector>

#include "ir/base/sharding_spec.h"
#include "sharding/pricing/priced_stage.h"

namespace pipeshard {

struct SharedSpec {
  ShardingSpec parameter;
  ShardingSpec parts;  // as their accumulators are; a partial sum is synchronized once a step
};

// The list depends on the mesh alone: a spec that a shape cannot have is replaced by the replicated one,
// which is the first. Written parameter/parts (S0, S1: cut along the tensor's first or second axis; sum: a
// partial sum). A mesh of one device has R/R alone.
//
//   over all mesh axes                 R/R, R/sum, S0/S0, S1/S1, S0/sum
//   with two axes of several devices   also, cut over the second axis, summed over the first: S0/S0+sum,
//                                      S1/S1+sum
std::vector<SharedSpec> sharedSpecs(const Shape& shape, const LogicalMesh& mesh);

// Of the ways that all of the layers can be in (by layer, then by number of sharedSpecs): that of the least
// time of a step, and that of the least bytes from step to step; of equal ones that which is better in the
// other, then the first. Nothing: none is possible.
struct SharedChoice {
  size_t fast = 0;
  size_t small = 0;
};
std::optional<SharedChoice> chooseShared(
    const std::vector<const std::vector<std::optional<PricedStage>>*>& layers, int64_t microbatches);

}  // namespace pipeshard
