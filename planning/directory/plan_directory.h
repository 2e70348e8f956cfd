// Plan directories (docs/plans.md): written as a whole, read in parts.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "ir/plan/plan.h"
#include "ir/program/program_set.h"
#include "planning/programs/planned_training.h"
#include "planning/request/progress.h"

namespace pipeshard {

// In a plan directory, of a model that was exported with its backward pass: the program of its own gradients.
inline constexpr const char* kImportedFolder = "imported";

// Gets a folder that is not yet in place, and the whole batch's programs as its files have them; none: a plan
// without programs.
using CompletePlan = std::function<void(const std::string& folder, const ProgramSet& programs)>;

// plan.json, model.onnx, the ranks' programs (runtime/execute/rank_image.h), plus reference/: the
// single-device program that `validate` compares with, and weights.json (runtime/files/weight_check.h) for
// both. An existing plan directory is replaced, at once and for good: a crash at any moment leaves the old
// one or the new one whole. Any other existing folder is refused (Error(kConfiguration)); while another
// process puts its own in place, this one waits, at most for `patience` (Error(kAddressInUse) naming it).
// Without programs: plan.json and model.onnx alone. `complete` adds more to the folder that is then put in
// place. `progress`: told how far the writing has come; what it throws leaves what was there. Programs of
// large clusters are large: who needs `planned` no more gives it away.
void writePlanDirectory(PlannedTraining planned, const std::string& directory,
                        const CompletePlan& complete = {},
                        std::chrono::milliseconds patience = std::chrono::seconds(10),
                        const ProgressCallback& progress = {});

// Whether a plan directory has programs (planning/directory/replay.h makes them where it has none).
bool hasPrograms(const std::string& directory);

// Error(kMissingInput) if there is no plan.json in it.
void requirePlanDirectory(const std::string& directory);
// plan.json of a plan directory. Errors: kMissingInput, kConfiguration.
Plan readPlanDirectory(const std::string& directory);
// The same of a plan directory or the path of a plan.json, and the text itself.
std::string readPlanText(const std::string& path);
Plan readPlanFile(const std::string& path);

}  // namespace pipeshard
