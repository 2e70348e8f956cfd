#include "tools/simulation/worker_memory.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/worker_threads.h"

namespace pipeshard {
namespace {

using MemoryOfKinds = std::map<std::pair<KindId, int>, WorkerMemory>;  // by kind and threads

WorkerMemory plannedMemory(const ProgramFolder& folder, const Program& program, int threads) {
  const WorkerThreads limit(threads);
  try {
    // plans the memory; nothing is allocated
    const Executor executor({program, folder.subgraphs(program), folder.folder()}, {});
    return {executor.memory().total_bytes, executor.constantBytes()};
  } catch (Error& error) {
    error.addContext(fmt::format("rank {}", program.rank));
    throw;
  }
}

void addSize(const ProgramFolder& folder, const ProgramSet& set, const std::function<int(RankId)>& threads,
             IdVector<RankId, WorkerMemory>& memory) {
  MemoryOfKinds of_kinds;
  for (const RankId rank : set.ranks.ids()) of_kinds[{set.ranks[rank].kind, threads(rank)}];
  std::vector<MemoryOfKinds::value_type*> entries;
  for (MemoryOfKinds::value_type& entry : of_kinds) entries.push_back(&entry);
  parallelFor(processorCount(), static_cast<int32_t>(entries.size()), [&](int32_t i) {
    entries[i]->second =
        plannedMemory(folder, set.kinds[entries[i]->first.first].program, entries[i]->first.second);
  });
  for (const RankId rank : set.ranks.ids()) {
    const WorkerMemory& of_size = of_kinds.at({set.ranks[rank].kind, threads(rank)});
    memory[rank].arena_bytes = std::max(memory[rank].arena_bytes, of_size.arena_bytes);
    memory[rank].constant_bytes += of_size.constant_bytes;
  }
}

}  // namespace

IdVector<RankId, WorkerMemory> memoryOfWorkers(ProgramFolder& folder, const ProgramSet& whole,
                                               const std::function<int(RankId)>& threads) {
  IdVector<RankId, WorkerMemory> memory(whole.ranks.size());
  for (const StepSize size : folder.sizes()) {
    if (size == StepSize::kWholeBatch) {
      addSize(folder, whole, threads, memory);
    } else {
      addSize(folder, folder.takeSet(size), threads, memory);
    }
  }
  return memory;
}

}  // namespace pipeshard
