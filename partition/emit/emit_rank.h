// One rank's program. Internal to partition/.
#pragma once

#include "partition/emit/rank_builder.h"
#include "partition/stages/partition.h"

namespace pipeshard {

// The rank's program, without the kFree instructions (emit_free.h adds them), and its subgraphs.
RankProgram emitRank(const EmissionContext& context, int rank);

}  // namespace pipeshard
