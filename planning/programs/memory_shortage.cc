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

int64_t PlannedMemory::of(RankId rank) {
  const ClusterNode& node = cluster_.nodes.at(cluster_.nodeOf(rank.index()));
  const KindId kind = programs_.set.ranks[rank].kind;
  const int count = std::max(1, node.cores / node.devices);
  const auto [found, is_new] = known_.try_emplace({kind, count}, 0);
  if (is_new) {
    const WorkerThreads threads(count);
    const Executor executor({programs_.set.kinds[kind].program, *programs_.subgraphs[kind], ""}, {});
    found->second = static_cast<int64_t>(executor.memory().total_bytes) + executor.constantBytes();
  }
  return found->second;
}

int64_t PlannedMemory::largest() {
  int64_t largest = 0;
  for (const RankId rank : programs_.set.ranks.ids()) largest = std::max(largest, of(rank));
  return largest;
}

Shortage largestShortage(const PartitionOptions& options, const StepPrograms& step) {
  Shortage worst;
  PlannedMemory memory(step.ranks, options.cluster);
  for (const RankId rank : step.ranks.set.ranks.ids()) {
    const int64_t room = memoryOf(options, rank);
    if (room == 0) continue;
    const Shortage found = {rank, memory.of(rank), room};
    if (found.excess() > worst.excess()) worst = found;
  }
  return worst;
}

}  // namespace pipeshard
