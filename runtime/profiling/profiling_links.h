// What messages and collectives take between workers, in processes like those of a job. Times are
// nanoseconds. Helper processes are forked; they end with the call, whatever happens. Thread rules: as
// profiling_passes.h.
#pragma once

#include <cstdint>

#include "ir/cluster/cluster.h"

namespace pipeshard {

struct LinkTimes {
  CostCurve send;  // ns by bytes of a message, from its posting until the receiver, who waits for it, has it
  // ns by bytes: the B of sharding/specs/cost_model.h; of float32, all ranks
  CostCurve all_reduce, all_gather, reduce_scatter, all_to_all;
};
// Between so many workers of a node (shared memory), 2 or more; messages between two of them.
LinkTimes measureInside(int64_t most_bytes, int ranks = 2);
// Between two nodes, as far as one machine can tell: messages over the loopback
// interface, encrypted as between the nodes of a job (transport/wire).
CostCurve measureBetween(int64_t most_bytes);

}  // namespace pipeshard
