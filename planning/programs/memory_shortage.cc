#include "planning/programs/memory_shortage.h"

#include <algorithm>
#include <vector>

#include "ir/base/parallel.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/worker_threads.h"

namespace pipeshard {
namespace {

// The bytes that a device may use, as the plan says; 0: any number.
int64_t memoryLimit(const Plan& plan, const StagePlan& stage, RankId rank) {
  const int64_t has = plan.memory > 0 ? plan.memory : plan.cluster.leastMemory({rank});
  const int64_t planned = stage.sharding ? stage.sharding->memory_limit : 0;
  return has > 0 && planned > 0 ? std::min(has, planned) : std::max(has, planned);
}

}  // namespace

std::pair<KindId, int> PlannedMemory::keyOf(RankId rank) const {
  const ClusterNode& node = cluster_.nodes.at(cluster_.nodeOf(rank.index()));
  return {programs_.set.ranks[rank].kind, std::max(1, node.cores / node.devices)};
}

ProgramBytes PlannedMemory::plan(KindId kind, int threads) const {
  const WorkerThreads limit(threads);
  const Executor executor({programs_.set.kinds[kind].program, *programs_.subgraphs[kind], ""}, {});
  return {executor.memory().total_bytes, executor.constantBytes()};
}

void PlannedMemory::planAll() {
  std::vector<MemoryOfKinds::value_type*> fresh;
  for (const RankId rank : programs_.set.ranks.ids()) {
    const auto [entry, is_new] = known_.try_emplace(keyOf(rank));
    if (is_new) fresh.push_back(&*entry);
  }
  parallelFor(processorCount(), static_cast<int32_t>(fresh.size()),
              [&](int32_t i) { fresh[i]->second = plan(fresh[i]->first.first, fresh[i]->first.second); });
}

int64_t PlannedMemory::of(RankId rank) {
  const ProgramBytes parts = partsOf(rank);
  return parts.arena + parts.constants;
}

ProgramBytes PlannedMemory::partsOf(RankId rank) {
  if (!known_.contains(keyOf(rank))) planAll();
  return known_.at(keyOf(rank));
}

MemoryOfSteps::MemoryOfSteps(PlannedTraining& planned) {
  steps_.push_back(&planned.whole);
  if (planned.last) steps_.push_back(&*planned.last);
  for (StepPrograms& shorter : planned.shorter) steps_.push_back(&shorter);
  for (const StepPrograms* step : steps_)
    sizes_.emplace_back(step->ranks, planned.plan.cluster, step->memory);
}

MemoryOfSteps::~MemoryOfSteps() {
  for (size_t i = 0; i < steps_.size(); ++i) steps_[i]->memory = sizes_[i].known();
}

int64_t MemoryOfSteps::of(RankId rank) {
  ProgramBytes all;
  for (PlannedMemory& size : sizes_) {
    const ProgramBytes bytes = size.partsOf(rank);
    all.arena = std::max(all.arena, bytes.arena);
    all.constants += bytes.constants;
  }
  return all.arena + all.constants;
}

int64_t MemoryOfSteps::largest() {
  int64_t largest = 0;
  for (const RankId rank : steps_.front()->ranks.set.ranks.ids()) largest = std::max(largest, of(rank));
  return largest;
}

Shortage largestShortage(const PartitionOptions& options, PlannedTraining& planned) {
  Shortage worst;
  MemoryOfSteps memory(planned);
  for (const RankId rank : planned.whole.ranks.set.ranks.ids()) {
    const int64_t room = options.sharding.memoryOf(options.cluster, {rank});
    if (room == 0) continue;
    const Shortage found = {rank, memory.of(rank), room};
    if (found.excess() > worst.excess()) worst = found;
  }
  return worst;
}

bool limitsMemory(const Plan& plan) {
  return std::any_of(plan.stages.begin(), plan.stages.end(), [&](const StagePlan& stage) {
    return std::any_of(stage.devices.begin(), stage.devices.end(),
                       [&](RankId rank) { return memoryLimit(plan, stage, rank) > 0; });
  });
}

std::vector<StageShortage> shortagesOf(PlannedTraining& planned) {
  const Plan& plan = planned.plan;
  std::vector<StageShortage> found;
  IdVector<RankId, bool> seen(planned.whole.ranks.size());
  MemoryOfSteps memory(planned);
  for (const StageId s : plan.stages.ids()) {
    const StagePlan& stage = plan.stages[s];
    for (const RankId rank : stage.devices) {
      const int64_t limit = memoryLimit(plan, stage, rank);
      if (limit == 0 || seen[rank]) continue;
      seen[rank] = true;
      const Shortage shortage = {rank, memory.of(rank), limit};
      if (shortage.excess() > 0) found.push_back({s, shortage});
    }
  }
  return found;
}

}  // namespace pipeshard
