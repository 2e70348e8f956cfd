#include "planning/directory/plan_check.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "ir/base/faults.h"
#include "ir/base/ids_format.h"
#include "ir/plan/plan_json.h"
#include "partition/families/plan_schedule.h"
#include "partition/stages/check_plan.h"
#include "planning/directory/plan_directory.h"
#include "planning/directory/refresh_programs.h"
#include "planning/directory/replay.h"
#include "planning/programs/memory_shortage.h"

namespace pipeshard {
namespace {

// The bytes that a device may use, as the plan says; 0: any number.
int64_t memoryLimit(const Plan& plan, const StagePlan& stage, RankId rank) {
  const int64_t has = plan.memory > 0 ? plan.memory : plan.cluster.leastMemory({rank});
  const int64_t planned = stage.sharding ? stage.sharding->memory_limit : 0;
  return has > 0 && planned > 0 ? std::min(has, planned) : std::max(has, planned);
}

void checkMemory(const PlannedTraining& planned, std::vector<std::string>& faults) {
  IdVector<RankId, bool> seen(planned.whole.ranks.size());
  PlannedMemory memory(planned.whole.ranks, planned.plan.cluster);
  for (const StageId s : planned.plan.stages.ids()) {
    const StagePlan& stage = planned.plan.stages[s];
    for (RankId rank : stage.devices) {
      const int64_t limit = memoryLimit(planned.plan, stage, rank);
      if (limit == 0 || seen[rank]) continue;
      seen[rank] = true;
      const int64_t needed = memory.of(rank);
      if (needed <= limit) continue;
      faults.push_back(fmt::format("plan.json.stages[{}]: device {} needs {} bytes; expected at most {}", s,
                                   rank, needed, limit));
    }
  }
}

void checkReadable(const std::string& path, const Plan& plan, const ProgressCallback& progress,
                   PlanCheck& check) {
  check.notes = planOddities(plan);
  check.edited = std::filesystem::is_directory(path) && wasEdited(path, plan);
  std::vector<std::string>& faults = check.faults;
  ReplayedModel replayed;
  const bool has_model =
      keepFault("plan.json.model", faults, [&] { replayed = replayModel(plan, progress); });
  if (!has_model) {
    keepFault("plan.json.schedule", faults, [&] { scheduleOf(plan); });
    return;
  }
  const std::vector<std::string> misfits = planMisfits(replayed.training, plan);
  faults.insert(faults.end(), misfits.begin(), misfits.end());
  if (!faults.empty()) return;
  progress("making the programs");
  PlannedTraining planned;
  planned.plan = plan;
  if (keepFault("plan.json", faults, [&] { emitReplayed(replayed, planned); })) checkMemory(planned, faults);
}

}  // namespace

PlanCheck checkPlan(const std::string& path, const ProgressCallback& progress) {
  const std::string text = readPlanText(path);
  PlanCheck check{planFaults(text), {}, false};
  if (check.faults.empty()) checkReadable(path, planFromJson(text), progress, check);
  return check;
}

}  // namespace pipeshard
