// Trained parameters that several groups of devices read (tied weights): they go from their owner to the
// others, afresh in every step, before the first pass. Internal to partition/emit/.
//
//   float32     rank 0: send "w" to 1                       rank 1: receive "w"
//   bfloat16    rank 0: run weight_copies "w" -> "w@bfloat16"; send it       rank 1: receive "w@bfloat16"
#pragma once

#include <functional>

#include "partition/emit/rank_builder.h"
#include "partition/emit/rank_transfers.h"

namespace pipeshard {

// A group that reads nothing of a parameter but copies of one narrower type gets such a copy, which the owner
// makes; where devices keep parts of it as a plan has chosen, or its versions differ, it gets the parameter.
// `changes`: by parameter, whether it does from step to step.
void shareParameters(const EmissionContext& context, RankId rank, const std::function<bool(size_t)>& changes,
                     RankBuilder& builder, RankTransfers& transfers);

}  // namespace pipeshard
