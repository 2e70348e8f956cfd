#include "planning/directory/plan_check.h"

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
#include "runtime/execute/rank_image.h"
#include "runtime/identity/plan_programs.h"

namespace pipeshard {
namespace {

void checkMemory(PlannedTraining& planned, std::vector<std::string>& faults) {
  for (const StageShortage& found : shortagesOf(planned)) {
    faults.push_back(fmt::format("plan.json.stages[{}]: device {} needs {} bytes; expected at most {}",
                                 found.stage, found.shortage.rank, found.shortage.needed,
                                 found.shortage.room));
  }
}

// Of a directory whose programs are those of its plan.json: whether a job can read them.
void checkPrograms(const std::string& directory, PlanCheck& check) {
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::path(directory) / kRanksFileName, ignored)) return;
  keepFault("programs", check.faults, [&] {
    ProgramFolder programs(directory);
    requireSoundPrograms(programs, [&](const std::string& changed) {
      for (const RankId rank : idsBelow<RankId>(programs.ranks())) programs.image(rank);
      check.notes.push_back(changed);
    });
  });
}

void checkReadable(const std::string& path, const Plan& plan, const ProgressCallback& progress,
                   PlanCheck& check) {
  check.notes = planOddities(plan);
  check.edited = std::filesystem::is_directory(path) && wasEdited(path, plan);
  if (std::filesystem::is_directory(path) && !check.edited) checkPrograms(path, check);
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
