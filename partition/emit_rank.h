// One rank's program. Internal to partition/.
#pragma once

#include <string>
#include <vector>

#include "ir/program.h"
#include "ir/training_graph.h"
#include "partition/emit_cut.h"
#include "partition/emit_messages.h"
#include "partition/partition.h"

namespace pipeshard {

// What all ranks' emissions share.
struct EmissionContext {
  const TrainingGraph& training;
  const Cut& cut;
  const ScheduleOrders& orders;
  const Messages& messages;
  // Between a value's name and a microbatch number: "@", or more of them if a name of the model holds one, so that buffer
  // names are unique and equal on all ranks.
  std::string separator;
};

// The rank's program, without the kFree instructions (emit_free.h adds them), and its subgraphs.
RankProgram emitRank(const EmissionContext& context, int rank);

}  // namespace pipeshard
