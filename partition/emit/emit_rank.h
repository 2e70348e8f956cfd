// Emits the program of one rank. Internal to partition/.
#pragma once

#include "partition/emit/emission_context.h"
#include "partition/emit/rank_builder.h"

namespace pipeshard {

// The rank's program, without the kFree instructions (emit_free.h adds them), and its subgraphs; and what
// the emission has asked about the rank.
EmittedRank emitRank(const EmissionContext& context, RankId rank);

}  // namespace pipeshard
