#include "planning/fewer/host_plan.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "ir/base/error.h"
#include "planning/directory/evaluation_folder.h"
#include "planning/directory/plan_directory.h"
#include "planning/directory/refresh_programs.h"
#include "planning/fewer/fewer_plans.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

bool hasPlan(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / "plan.json", ignored);
}

// PLAN of PLAN/fewer/DEVICES, else the directory itself.
fs::path wholePlanOf(const fs::path& directory) {
  const fs::path folder = directory.parent_path();
  return folder.filename() == kFewerFolder && hasPlan(folder.parent_path()) ? folder.parent_path()
                                                                            : directory;
}

void makePlanForFewer(const fs::path& whole, const fs::path& directory, const ProgressCallback& progress) {
  const std::vector<PlanForFewer> plans = prepareFewerPlans(whole.string(), progress);
  if (hasPrograms(directory.string())) return;
  const auto found = std::ranges::find_if(
      plans, [&](const PlanForFewer& plan) { return std::to_string(plan.devices) == directory.filename(); });
  fail(ErrorCode::kMissingInput, "{}: {}", directory.string(),
       found == plans.end() ? "the plan on this host is not the coordinator's" : found->why);
}

}  // namespace

void completePlan(const std::string& directory, int64_t held_out_rows, const ProgressCallback& progress) {
  fs::path folder = fs::path(directory).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // "job.plan/"
  const fs::path whole = wholePlanOf(folder);
  if (!hasPlan(whole)) return;
  const bool complete = hasPrograms(whole.string());
  if (complete && whole == folder && held_out_rows == 0) return;
  if (wasEdited(whole.string(), readPlanDirectory(whole.string()))) return;
  if (!complete) refreshPrograms(whole.string(), progress);
  if (whole != folder) makePlanForFewer(whole, folder, progress);
  if (held_out_rows > 0) makeEvaluation(folder.string(), held_out_rows, progress);
}

}  // namespace pipeshard
