#include "planning/directory/replay.h"

#include <string>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/base/faults.h"
#include "partition/stages/check_plan.h"
#include "planning/model/plan_description.h"
#include "planning/programs/imported_gradients.h"
#include "planning/programs/step_programs.h"

namespace pipeshard {
namespace {

// An edited plan may ask for parts of a batch that was planned whole.
[[noreturn]] void failUncut(const std::string& why) {
  fail(ErrorCode::kConfiguration, "plan.json.cut_batch: found false; expected true, since {}", why);
}

}  // namespace

ReplayedModel replayModel(const Plan& plan, const ProgressCallback& progress, bool in_float64) {
  if (!plan.cut_batch && plan.microbatches > 1)
    failUncut(fmt::format("the plan has {} microbatches", plan.microbatches));
  PlanRequest request = requestOf(plan);
  request.in_float64 = in_float64;
  ReplayedModel replayed;
  replayed.optimizer = request.given.optimizer;
  replayed.model = loadForward(request, {}, progress);
  replayed.batch = batchCutOf(plan, replayed.model);
  progress("building the training graph");
  replayed.training = trainingFamily(replayed.model, replayed.optimizer, replayed.batch).base();
  return replayed;
}

void emitReplayed(const ReplayedModel& replayed, PlannedTraining& planned) {
  const Plan& plan = planned.plan;
  if (!plan.cut_batch && hasDataParallelStage(plan))
    failUncut("devices of a stage share the rows of a microbatch");
  planned.whole = emitStep(replayed.model, replayed.optimizer, replayed.batch, plan);
  if (plan.last_batch > 0)
    planned.last =
        emitLastBatch(replayed.model, replayed.optimizer, replayed.batch, planned.plan, planned.whole);
  planned.shorter =
      emitShorterSequences(replayed.model, replayed.optimizer, replayed.batch, plan, planned.whole);
}

PlannedTraining replayPlan(const Plan& plan, const ProgressCallback& progress, bool in_float64) {
  const ReplayedModel replayed = replayModel(plan, progress, in_float64);
  const std::vector<std::string> faults = planMisfits(replayed.training, plan);
  throwFaults("plan.json", faults);
  PlannedTraining planned;
  planned.plan = plan;
  planned.training = replayed.training;
  fillNumbers(planned.training, planned.plan);
  progress("writing the programs of the ranks");
  emitReplayed(replayed, planned);
  std::vector<std::string> noted;  // the plan has its notes
  planned.imported =
      importedGradients(replayed.model, planned.training, planned.whole.reference.program, noted);
  return planned;
}

}  // namespace pipeshard
