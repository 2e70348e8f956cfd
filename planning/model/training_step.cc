#include "planning/model/training_step.h"

#include <algorithm>
#include <map>
#include <string>

#include "ir/base/error.h"
#include "onnx_import/autodiff/training.h"
#include "partition/families/plan_schedule.h"
#include "sharding/batch/time_axis.h"

namespace pipeshard {
namespace {

// Which axis of an input that is drawn the batch is: the one that is longer in a larger batch. -1: none.
int drawnAxis(const Value& value, const Graph& other) {
  const ValueId namesake = findValue(other, value.name);
  if (!namesake.valid() || other.shape(namesake).size() != value.shape->size()) return -1;
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    if (other.shape(namesake)[axis] != (*value.shape)[axis]) return static_cast<int>(axis);
  }
  return -1;
}

// Which axis of each input of a prepared graph the batch is. `other`: the same model for another batch;
// nullptr: the batch is not cut.
std::vector<BatchInput> batchInputs(const Graph& prepared, const Graph* other,
                                    const std::map<std::string, int>& axes) {
  std::vector<BatchInput> inputs;
  for (ValueId input : prepared.inputs) {
    const Value& value = prepared.value(input);
    const auto axis = axes.find(value.name);
    const bool drawn = value.drawn.has_value() && other != nullptr;
    inputs.push_back({input, drawn ? drawnAxis(value, *other) : axis == axes.end() ? -1 : axis->second});
  }
  return inputs;
}

}  // namespace

TrainingFamily trainingFamily(const ForwardModel& model, const OptimizerSpec& optimizer,
                              const BatchCut& batch) {
  return TrainingFamily(batch.rows, batch.microbatches, [&model, &optimizer, batch](int64_t rows) {
    Graph graph = model.prepared(rows);
    BatchShare share{rows, batch.rows, nullptr, 0};
    if (batch.cut) {
      share.other_rows = rows != batch.rows ? batch.rows : batch.rows > 1 ? batch.rows / 2 : 2;
      share.other = &model.prepared(share.other_rows);
    }
    const std::vector<BatchInput> inputs = batchInputs(graph, share.other, model.batch_axes);
    const ValueId loss = findValue(graph, model.graph.value(model.loss).name);
    TimeAxisResult time = splitTimeAxis(graph, loss, inputs, share);
    TrainingGraph training = buildTrainingGraph(
        ForwardGraph{std::move(graph), time.loss, inputs, std::move(time.totals), batch.microbatches},
        optimizer);
    verifyTrainingGraph(training);
    return training;
  });
}

bool hasDataParallelStage(const Plan& plan) {
  if (devicesTakeTurns(plan)) return false;
  return std::any_of(plan.stages.begin(), plan.stages.end(),
                     [](const StagePlan& stage) { return stage.mesh_shape.at(0) > 1; });
}

BatchCut batchCutOf(const Plan& plan, const ForwardModel& model) {
  return {model.batch, model.microbatches, plan.cut_batch};
}

bool canSumOverBatch(const ForwardModel& model, const OptimizerSpec& optimizer, Plan& plan) {
  if (model.batch < 2) return false;
  try {
    trainingFamily(model, optimizer, {model.batch, 1, true}).base();
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) throw;
    plan.notes.push_back("the loss is not cut along the batch: " + error.message());
    return false;
  }
}

}  // namespace pipeshard
