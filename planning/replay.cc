#include "planning/replay.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/base/faults.h"
#include "partition/layers/layers.h"
#include "partition/stages/check_plan.h"
#include "planning/imported_gradients.h"
#include "planning/memory_shortage.h"
#include "planning/step_programs.h"
#include "planning/training_step.h"
#include "tools/report/report_files.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEditedNote =
    "plan.json was edited: predicted times and memory of shardings are those from before";

// A plan's model as far as its training step.
struct ReplayedModel {
  OptimizerSpec optimizer;
  ForwardModel model;
  BatchCut batch;
  TrainingGraph training;
};

ReplayedModel replayModel(const Plan& plan, const ProgressCallback& progress) {
  const PlanRequest request = requestOf(plan);
  ReplayedModel replayed;
  replayed.optimizer = parseOptimizer(request.optimizer);
  replayed.model = loadForward(request, {}, progress);
  replayed.batch = batchCutOf(plan, replayed.model, replayed.optimizer);
  progress("building the training graph");
  const int64_t nodes = plan.layers.empty() ? 0 : plan.layers.back().last + 1;
  const auto family = [&](bool cut) {
    BatchCut batch = replayed.batch;
    batch.cut = cut;
    return trainingFamily(replayed.model, replayed.optimizer, batch);
  };
  replayed.training = family(replayed.batch.cut).base();
  const auto fits = [&](const TrainingGraph& training) {
    return std::ssize(forwardNodes(training)) == nodes;
  };
  if (replayed.batch.cut || replayed.model.batch < 2 || fits(replayed.training)) return replayed;
  // A batch that need not be cut may have been, all the same: then its operators are the plan's.
  Plan noted = plan;
  if (!canSumOverBatch(replayed.model, replayed.optimizer, noted)) return replayed;
  TrainingGraph cut = family(true).base();
  if (!fits(cut)) return replayed;
  replayed.batch.cut = true;
  replayed.training = std::move(cut);
  return replayed;
}

void emitAll(const ReplayedModel& replayed, PlannedTraining& planned) {
  const Plan& plan = planned.plan;
  planned.whole = emitStep(replayed.model, replayed.optimizer, replayed.batch, plan);
  if (plan.last_batch == 0) return;
  planned.last = emitStep(replayed.model, replayed.optimizer,
                          {plan.last_batch, plan.last_microbatches, replayed.batch.cut}, plan);
}

// The bytes that a device may use, as the plan says; 0: any number.
int64_t memoryLimit(const Plan& plan, const StagePlan& stage, int rank) {
  const int64_t kind = plan.cluster.kindOf(rank).memory_bytes;
  const int64_t given = stage.sharding ? stage.sharding->memory_limit : 0;
  return kind > 0 && given > 0 ? std::min(kind, given) : std::max(kind, given);
}

void checkMemory(const PlannedTraining& planned, std::vector<std::string>& faults) {
  std::vector<bool> seen(planned.whole.ranks.size());
  for (size_t s = 0; s < planned.plan.stages.size(); ++s) {
    const StagePlan& stage = planned.plan.stages[s];
    for (int rank : stage.devices) {
      const int64_t limit = memoryLimit(planned.plan, stage, rank);
      if (limit == 0 || seen[static_cast<size_t>(rank)]) continue;
      seen[static_cast<size_t>(rank)] = true;
      const int64_t needed =
          plannedMemory(planned.whole.ranks[static_cast<size_t>(rank)], planned.plan.cluster);
      if (needed <= limit) continue;
      faults.push_back(fmt::format("plan.json.stages[{}]: device {} needs {} bytes; expected at most {}", s,
                                   rank, needed, limit));
    }
  }
}

std::string storedHash(const std::string& directory) {
  std::ifstream file(fs::path(directory) / kMadeFromName, std::ios::binary);
  if (!file) return "";
  const nlohmann::json document = nlohmann::json::parse(file, nullptr, false);
  return document.is_object() && document.contains("plan") && document.at("plan").is_string()
             ? document.at("plan").get<std::string>()
             : std::string("unreadable");
}

std::string hashOf(const Plan& plan) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : planToJson(plan)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

void checkReadable(const std::string& path, const Plan& plan, const ProgressCallback& progress,
                   PlanCheck& check) {
  check.notes = planOddities(plan);
  const std::string stored = fs::is_directory(path) ? storedHash(path) : "";
  check.edited = !stored.empty() && stored != hashOf(plan);
  std::vector<std::string>& faults = check.faults;
  const bool has_optimizer =
      keepFault("plan.json.optimizer", faults, [&] { parseOptimizer(plan.optimizer); });
  ReplayedModel replayed;
  const bool has_model =
      has_optimizer && keepFault("plan.json.model", faults, [&] { replayed = replayModel(plan, progress); });
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
  if (keepFault("plan.json", faults, [&] { emitAll(replayed, planned); })) checkMemory(planned, faults);
}

}  // namespace

PlannedTraining replayPlan(const Plan& plan, const ProgressCallback& progress) {
  const ReplayedModel replayed = replayModel(plan, progress);
  const std::vector<std::string> faults = planMisfits(replayed.training, plan);
  throwFaults("plan.json", faults);
  PlannedTraining planned;
  planned.plan = plan;
  planned.training = replayed.training;
  fillNumbers(planned.training, planned.plan);
  progress("writing the programs of the ranks");
  emitAll(replayed, planned);
  std::vector<std::string> noted;  // the plan has its notes
  planned.imported =
      importedGradients(replayed.model, planned.training, planned.whole.reference.program, noted);
  return planned;
}

std::string madeFrom(const Plan& plan) {
  nlohmann::ordered_json document;
  document["version"] = 1;
  document["plan"] = hashOf(plan);
  return document.dump() + "\n";
}

ProgramsMade refreshPrograms(const std::string& directory, const ProgressCallback& progress) {
  const std::string stored = storedHash(directory);
  const bool complete = hasPrograms(directory);
  if (complete && stored.empty()) return ProgramsMade::kNone;
  Plan plan = readPlanDirectory(directory);
  const bool edited = !stored.empty() && stored != hashOf(plan);
  if (complete && !edited) return ProgramsMade::kNone;
  const bool is_new = hasShardedStage(plan) &&
                      std::find(plan.notes.begin(), plan.notes.end(), kEditedNote) == plan.notes.end();
  if (edited && is_new) plan.notes.emplace_back(kEditedNote);
  try {
    PlannedTraining planned = replayPlan(plan, progress);
    if (!edited) planned.plan = plan;
    writePlanDirectory(planned, directory);
    writeReport(directory);
  } catch (Error& error) {
    if (!edited) throw;
    throw error.addContext(
        fmt::format("{} was edited since its programs were made, and they cannot be made again (`pipeshard "
                    "plan --check {}` says more)",
                    (fs::path(directory) / "plan.json").string(), directory));
  }
  return edited ? ProgramsMade::kAgain : ProgramsMade::kFirst;
}

void refreshEdited(const std::string& directory, const ProgressCallback& progress) {
  if (refreshPrograms(directory, progress) != ProgramsMade::kAgain) return;
  fmt::print(stderr, "note: {}/plan.json was edited: its programs were made again\n", directory);
}

PlanCheck checkPlan(const std::string& path, const ProgressCallback& progress) {
  const std::string text = readPlanText(path);
  PlanCheck check{planFaults(text), {}, false};
  if (check.faults.empty()) checkReadable(path, planFromJson(text), progress, check);
  return check;
}

}  // namespace pipeshard
