// Keeps the programs of a plan directory in step with its plan.json: where people have edited that, they are
// made again.
#pragma once

#include <cstdint>
#include <string>

#include "ir/plan/plan.h"
#include "planning/request/progress.h"

namespace pipeshard {

// Beside plan.json: a hash of the plan.json that the programs were made from (of its content: layout does not
// count).
inline constexpr const char* kMadeFromName = "made_from.json";
std::string madeFrom(const Plan& plan);

// Whether the plan is not the one that the directory's programs were made from. A directory with programs and
// without made_from.json is taken as it is.
bool wasEdited(const std::string& directory, const Plan& plan);

// Where plan.json was edited, the programs are made again, and what was measured with the old ones is removed
// (so is the report: it is the caller's to write anew); where there are none (`plan --no-programs`), they are
// made. Error(kOutOfMemory) where a device needs more for them than the plan says that it has; nothing is
// written then.
enum class ProgramsMade : uint8_t { kNone, kFirst, kAgain };
ProgramsMade refreshPrograms(const std::string& directory, const ProgressCallback& progress);

}  // namespace pipeshard
