#include "planning/explain_plan.h"

#include "ir/base/error.h"
#include "planning/model/forward_model.h"
#include "planning/model/plan_description.h"
#include "planning/model/training_step.h"

namespace pipeshard {

std::vector<StageExplanation> explainPlan(const Plan& plan, int alternatives,
                                          const ProgressCallback& progress) {
  const PlanRequest request = requestOf(plan);
  const OptimizerSpec& optimizer = request.given.optimizer;
  const ForwardModel model = loadForward(request, {}, progress);
  try {
    const TrainingFamily family = trainingFamily(model, optimizer, batchCutOf(plan, model));
    return explainStages(family.base(), plan, alternatives, progress);
  } catch (Error& error) {
    error.addContext(plan.model_path);
    throw;  // whatever kind of error it is
  }
}

}  // namespace pipeshard
