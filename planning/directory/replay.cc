#include "planning/directory/replay.h"

#include <utility>

#include "ir/base/error.h"
#include "ir/base/faults.h"
#include "partition/stages/check_plan.h"
#include "planning/model/plan_description.h"
#include "planning/programs/imported_gradients.h"
#include "planning/programs/step_programs.h"

namespace pipeshard {

ReplayedModel replayModel(const Plan& plan, const ProgressCallback& progress) {
  const PlanRequest request = requestOf(plan);
  ReplayedModel replayed;
  replayed.optimizer = request.optimizer;
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

void emitReplayed(const ReplayedModel& replayed, PlannedTraining& planned) {
  const Plan& plan = planned.plan;
  planned.whole = emitStep(replayed.model, replayed.optimizer, replayed.batch, plan);
  if (plan.last_batch == 0) return;
  planned.last = emitStep(replayed.model, replayed.optimizer,
                          {plan.last_batch, plan.last_microbatches, replayed.batch.cut}, plan);
}

PlannedTraining replayPlan(const Plan& plan, const ProgressCallback& progress) {
  const ReplayedModel replayed = replayModel(plan, progress);
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
