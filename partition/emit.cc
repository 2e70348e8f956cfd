#include <algorithm>

#include "ir/error.h"
#include "partition/emit_cut.h"
#include "partition/emit_free.h"
#include "partition/emit_messages.h"
#include "partition/emit_rank.h"
#include "partition/layout.h"
#include "partition/partition.h"
#include "partition/schedule.h"
#include "partition/stage_shardings.h"

namespace pipeshard {
namespace {

std::string separatorFor(const Graph& graph) {
  std::string separator = "@";
  const auto is_used = [&](const Value& value) { return value.name.find(separator) != std::string::npos; };
  while (std::any_of(graph.values.begin(), graph.values.end(), is_used)) separator += '@';
  return separator;
}

int64_t smallestCell(const Layout& layout, const TrainingFamily& family) {
  int64_t rows = family.largestMicrobatch();
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    for (int64_t k = 0; k < family.microbatches(); ++k) rows = std::min(rows, layout.cell(rank, k).count);
  }
  return rows;
}

// Chunks of a rank would keep one value in several ways.
void refuseShardedChunks(const Plan& plan, const Layout& layout) {
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    if (!plan.stages[s].sharding || layout.stagesOf(layout.group(static_cast<int>(s))).size() == 1) continue;
    fail(ErrorCode::kConfiguration,
         "stage {} is sharded (--method {}), and its devices have other stages too (--schedule {}); leave out --method, or take a schedule "
         "with one stage per pipeline rank",
         s, plan.stages[s].sharding->method, plan.schedule);
  }
}

}  // namespace

std::vector<RankProgram> emitPrograms(const TrainingFamily& family, const Plan& plan) {
  return emitPrograms(family, plan, scheduleOf(plan));
}

std::vector<RankProgram> emitPrograms(const TrainingFamily& family, const Plan& plan, const Schedule& schedule) {
  const TrainingGraph& training = family.base();
  const Layout layout(plan, family);
  PIPESHARD_CHECK(schedule.stages == layout.stages() && schedule.microbatches == family.microbatches(),
                  "the schedule {} is of another plan", schedule.name);
  refuseShardedChunks(plan, layout);
  if (schedule.asynchronous() || schedule.forward_only) {
    fail(ErrorCode::kConfiguration, "the schedule {} can be drawn and simulated, but not run yet; choose a synchronous one", schedule.name);
  }
  const Cut cut = cutTraining(training, plan);
  const Messages messages(cut, schedule);
  std::vector<TimeKind> kinds(training.graph.values.size());
  if (layout.hasDataParallelism()) kinds = batchKinds(family, smallestCell(layout, family));
  const StageShardings shardings(family, plan, cut);
  const EmissionContext context{family, layout, cut, schedule, messages, kinds, shardings, separatorFor(training.graph)};
  std::vector<RankProgram> ranks;
  std::vector<Program> programs;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    ranks.push_back(emitRank(context, rank));
    programs.push_back(ranks.back().program);
  }
  insertFrees(programs);
  verifyPrograms(programs);
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].program = std::move(programs[rank]);
  return ranks;
}

std::vector<RankProgram> emitPrograms(const TrainingGraph& training, const Plan& plan) {
  return emitPrograms(TrainingFamily(training), plan);
}

}  // namespace pipeshard
