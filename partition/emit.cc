#include <algorithm>

#include <fmt/ranges.h>

#include "ir/error.h"
#include "partition/emit_cut.h"
#include "partition/emit_free.h"
#include "partition/emit_messages.h"
#include "partition/emit_rank.h"
#include "partition/partition.h"
#include "partition/schedule.h"

namespace pipeshard {
namespace {

// Rank s runs stage s; stages on several devices need a sharded model.
void checkPlan(const TrainingGraph& training, const Plan& plan) {
  if (plan.stages.empty()) fail(ErrorCode::kConfiguration, "the plan has no stages");
  if (plan.microbatches != training.microbatches) {
    fail(ErrorCode::kConfiguration, "the plan has {} microbatches, the training graph was built for {}", plan.microbatches,
         training.microbatches);
  }
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    const std::vector<int>& devices = plan.stages[s].devices;
    if (devices != std::vector<int>{static_cast<int>(s)}) {
      fail(ErrorCode::kConfiguration, "stage {} is on devices [{}]; stage s runs on device s alone, so expected [{}]", s,
           fmt::join(devices, ","), s);
    }
  }
}

std::string separatorFor(const Graph& graph) {
  std::string separator = "@";
  const auto is_used = [&](const Value& value) { return value.name.find(separator) != std::string::npos; };
  while (std::any_of(graph.values.begin(), graph.values.end(), is_used)) separator += '@';
  return separator;
}

}  // namespace

std::vector<RankProgram> emitPrograms(const TrainingGraph& training, const Plan& plan) {
  checkPlan(training, plan);
  const int stages = static_cast<int>(plan.stages.size());
  const ScheduleOrders orders = makeSchedule(plan.schedule, stages, static_cast<int>(plan.microbatches));
  verifySchedule(orders, static_cast<int>(plan.microbatches));
  const Cut cut = cutTraining(training, plan);
  const Messages messages(cut, orders);
  const EmissionContext context{training, cut, orders, messages, separatorFor(training.graph)};
  std::vector<RankProgram> ranks;
  std::vector<Program> programs;
  for (int rank = 0; rank < stages; ++rank) {
    ranks.push_back(emitRank(context, rank));
    programs.push_back(ranks.back().program);
  }
  insertFrees(programs);
  verifyPrograms(programs);
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].program = std::move(programs[rank]);
  return ranks;
}

}  // namespace pipeshard
