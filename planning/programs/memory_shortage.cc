#include "planning/programs/memory_shortage.h"

#include <algorithm>

#include "runtime/execute/executor.h"
#include "runtime/execute/worker_threads.h"

namespace pipeshard {
namespace {

// 0: there is no limit.
int64_t memoryOf(const PartitionOptions& options, int rank) {
  const ShardingRequest& asked = options.sharding;
  return asked.memory_bytes > 0 && !asked.memory_by_cluster ? asked.memory_bytes
                                                            : options.cluster.kindOf(rank).memory_bytes;
}

}  // namespace

int64_t plannedMemory(const RankProgram& rank, const Cluster& cluster) {
  const ClusterNode& node = cluster.nodes.at(cluster.nodeOf(rank.program.rank));
  const WorkerThreads threads(std::max(1, node.cores / node.devices));
  const Executor executor({rank.program, rank.subgraphs, ""}, {});
  return executor.memory().total_bytes + executor.constantBytes();
}

Shortage largestShortage(const PartitionOptions& options, const StepPrograms& step) {
  Shortage worst;
  for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
    const int64_t room = memoryOf(options, rank);
    if (room == 0) continue;
    const Shortage found = {static_cast<int>(rank), plannedMemory(step.ranks[rank], options.cluster), room};
    if (found.excess() > worst.excess()) worst = found;
  }
  return worst;
}

}  // namespace pipeshard
