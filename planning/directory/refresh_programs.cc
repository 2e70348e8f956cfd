#include "planning/directory/refresh_programs.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/hash.h"
#include "ir/base/ids_format.h"
#include "ir/base/json_reader.h"
#include "ir/base/text_file.h"
#include "ir/plan/plan_json.h"
#include "planning/directory/plan_directory.h"
#include "planning/directory/replay.h"
#include "planning/programs/memory_shortage.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEditedNote =
    "plan.json was edited: predicted times and memory of shardings are those from before";

// "" where there is none.
std::string storedHash(const std::string& directory) {
  const std::optional<std::string> text = readTextFile((fs::path(directory) / kMadeFromName).string());
  if (!text) return "";
  try {
    const Json json = parseJson(*text, kMadeFromName);
    const JsonReader document(json, kMadeFromName);
    document.expectObject({"version", "plan"});
    return document.at("plan").string();
  } catch (const Error&) {
    return "unreadable";
  }
}

std::string hashOf(std::string_view text) { return fmt::format("{:016x}", hashBytes(text)); }
std::string hashOf(const Plan& plan) { return hashOf(planToJson(plan)); }

// Programs that `plan` has not made were not compared with what devices have.
void requireMemory(PlannedTraining& planned) {
  const Plan& plan = planned.plan;
  if (!limitsMemory(plan)) return;
  const std::vector<StageShortage> found = shortagesOf(planned);
  if (found.empty()) return;
  const auto less = [](const StageShortage& a, const StageShortage& b) {
    return a.shortage.excess() < b.shortage.excess();
  };
  const Shortage most = std::max_element(found.begin(), found.end(), less)->shortage;
  fail(ErrorCode::kOutOfMemory,
       "{}: device {} needs {} bytes, and has {}; `pipeshard plan` without --no-programs looks for a plan "
       "that fits",
       plan.memory > 0 ? fmt::format("--memory {}", plan.memory) : "--cluster " + plan.cluster.name,
       most.rank, most.needed, most.room);
}

// It holds byte for byte what the programs were made from: then nobody has edited it, and nothing of it needs
// to be read to know so. (Other bytes may still say the same.)
bool isAsWritten(const std::string& directory, const std::string& stored) {
  const std::optional<std::string> text = readTextFile((fs::path(directory) / "plan.json").string());
  return text && hashOf(*text) == stored;
}

}  // namespace

std::string madeFrom(const Plan& plan) {
  nlohmann::ordered_json document;
  document["version"] = 1;
  document["plan"] = hashOf(plan);
  return document.dump() + "\n";
}

bool wasEdited(const std::string& directory, const Plan& plan) {
  const std::string stored = storedHash(directory);
  return !stored.empty() && stored != hashOf(plan);
}

ProgramsMade refreshPrograms(const std::string& directory, const ProgressCallback& progress) {
  const bool complete = hasPrograms(directory);
  const std::string stored = storedHash(directory);
  if (complete && (stored.empty() || isAsWritten(directory, stored))) return ProgramsMade::kNone;
  Plan plan = readPlanDirectory(directory);
  const bool edited = wasEdited(directory, plan);
  if (complete && !edited) return ProgramsMade::kNone;
  const bool is_new = hasShardedStage(plan) &&
                      std::find(plan.notes.begin(), plan.notes.end(), kEditedNote) == plan.notes.end();
  if (edited && is_new) plan.notes.emplace_back(kEditedNote);
  try {
    PlannedTraining planned = replayPlan(plan, progress);
    progress("planning the memory of the ranks");
    requireMemory(planned);
    plan.last_microbatches = planned.plan.last_microbatches;
    if (!edited) planned.plan = plan;
    writePlanDirectory(std::move(planned), directory);
  } catch (Error& error) {
    if (!edited) throw;
    error.addContext(
        fmt::format("{} was edited since its programs were made, and they cannot be made again (`pipeshard "
                    "plan --check {}` says more)",
                    (fs::path(directory) / "plan.json").string(), directory));
    throw;  // whatever kind of error it is
  }
  return edited ? ProgramsMade::kAgain : ProgramsMade::kFirst;
}

}  // namespace pipeshard
