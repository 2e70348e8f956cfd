// Plans that are there, and that people may have edited: checked, and made into programs again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/plan/plan.h"
#include "planning/planning.h"

namespace pipeshard {

// The plan as it stands: nothing is decided again. Numbers that follow from it (FLOPs, microbatches in
// flight, ...) are filled in; a note says that predicted times are those from before. Error(kConfiguration)
// that names every rule that the plan violates; errors of the model.
PlannedTraining replayPlan(const Plan& plan, const ProgressCallback& progress);

// Beside ranks/: a hash of the plan.json that the programs were made from (of its content: layout does not
// count).
inline constexpr const char* kMadeFromName = "made_from.json";
std::string madeFrom(const Plan& plan);

// The programs of a plan directory are those of its plan.json: where that was edited since, they are made
// again, and what was measured with the old ones is removed; where there are none (`plan --no-programs`),
// they are made. A directory with programs and without made_from.json is left as it is.
enum class ProgramsMade : uint8_t { kNone, kFirst, kAgain };
ProgramsMade refreshPrograms(const std::string& directory, const ProgressCallback& progress);

// The same, and says it on standard error: for commands.
void refreshEdited(const std::string& directory, const ProgressCallback& progress);

struct PlanCheck {
  std::vector<std::string>
      faults;  // every rule that is violated, with field, what was found and what was expected
  std::vector<std::string> notes;  // what is allowed, and seldom meant
  bool edited = false;             // plan.json is not what the programs were made from
};
// Of a plan directory or a plan.json: first the text; if it can be read, schedule, model, layers, stages,
// shardings, programs, memory. Errors: kMissingInput, kVersionMismatch.
PlanCheck checkPlan(const std::string& path, const ProgressCallback& progress);

}  // namespace pipeshard
