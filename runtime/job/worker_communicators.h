// How a worker reaches the other ranks: shared memory on its host, and what was chosen between hosts.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "runtime/job/worker.h"
#include "transport/collectives/communicator.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {

class WorkerLink;  // runtime/job/worker_link.h

// For all workers to have opened their ends; they load their programs first.
inline constexpr std::chrono::minutes kConnectTimeout{10};

struct Communicators {
  std::unique_ptr<Communicator> first;
  std::unique_ptr<Communicator> second;  // for background collectives; null where there are none
  std::span<std::byte> arena;            // the host's, shared with the ranks here; empty for 0 bytes
};

// The node of each of the job's ranks; all on one where none is said. Error(kConfiguration) for another
// number.
IdVector<RankId, int> nodesOfRanks(const WorkerOptions& options, int ranks);

// Waits for all ranks. `ranks`: of the job. `background`: the groups of background collectives of all ranks;
// each rank gives the same. Errors: as SharedMemoryCommunicator::open, openWire, openGloo.
Communicators openCommunicators(const WorkerOptions& options, int ranks, size_t arena_bytes,
                                const std::vector<std::vector<RankId>>& background, WorkerLink& link,
                                SharedSegments segments);

}  // namespace pipeshard
