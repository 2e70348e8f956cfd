#include "planning/programs/memory_shortage.h"

#include <algorithm>

#include "runtime/execute/executor.h"
#include "runtime/execute/worker_threads.h"

namespace pipeshard {
namespace {

// 0: there is no limit.
int64_t memoryOf(const PartitionOptions& options, RankId rank) {
  const ShardingRequest& asked = options.sharding;
  return asked.memory_bytes > 0 && !asked.memory_by_cluster
             ? asked.memory_bytes
             : options.cluster.kindOf(rank.index()).memory_bytes;
}

}  // namespace

int64_t plannedMemory(const RankProgram& rank, const Cluster& cluster) {
  const ClusterNode& node = cluster.nodes.at(cluster.nodeOf(rank.program.rank.index()));
  const WorkerThreads threads(std::max(1, node.cores / node.devices));
  const Executor executor({rank.program, rank.subgraphs, ""}, {});
  return executor.memory().total_bytes + executor.constantBytes();
}

Shortage largestShortage(const PartitionOptions& options, const StepPrograms& step) {
  Shortage worst;
  for (RankId rank : step.ranks.ids()) {
    const int64_t room = memoryOf(options, rank);
    if (room == 0) continue;
    const Shortage found = {rank, plannedMemory(step.ranks[rank], options.cluster), room};
    if (found.excess() > worst.excess()) worst = found;
  }
  return worst;
}

}  // namespace pipeshard
