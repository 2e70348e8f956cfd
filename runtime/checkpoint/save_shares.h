// Which rank saves what. Every part of a tensor is saved once; where several ranks hold copies of it, as
// data-parallel replicas do, they share the work, so that what steps wait for (the copy) and what is written
// divide by the number of replicas.
//
//   two replicas that hold a (8 bytes), b (6) and c (4):   rank 0 saves a, rank 1 saves b and c
#pragma once

#include <string>
#include <vector>

#include "ir/base/ids.h"
#include "ir/program/program_set.h"
#include "runtime/checkpoint/checkpoint.h"

namespace pipeshard {

struct SaveShares {
  IdVector<RankId, std::vector<BufferId>> buffers;  // of each rank's program, in the order of its file
  // What CheckpointFile number r holds when rank r has written it, of all ranks; sorted by name.
  std::vector<CheckpointTensor> tensors;
};

// First what one rank alone holds, then the largest part first, each to the holder that has the least so
// far. `disks`: by rank, the host on whose disk it writes, equal ("") where all write into one folder. Copies
// on another disk than that of the rank that lists the part as a result (ir/program/program.h) take no share:
// a host that is lost would take a piece of every checkpoint with it, where one without had them whole. Equal
// input, equal shares. Error(kInternal) where the parts are not every element once.
SaveShares shareSaves(const ProgramSet& programs, const IdVector<RankId, std::string>& disks);

}  // namespace pipeshard
