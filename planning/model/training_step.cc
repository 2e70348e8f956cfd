#include "planning/model/training_step.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/exporter/lost_parameters.h"
#include "onnx_import/precision/precision.h"
#include "partition/families/plan_schedule.h"
#include "planning/model/unmade_outputs.h"
#include "sharding/batch/time_axis.h"

namespace pipeshard {
namespace {

// Which axis of a value the batch is: the one that is longer in a larger batch. -1: none.
int growingAxis(const Value& value, const Graph& other) {
  const ValueId namesake = findValue(other, value.name);
  if (!namesake.valid() || other.shape(namesake).size() != value.shape->size()) return -1;
  for (size_t axis = 0; axis < value.shape->size(); ++axis) {
    if (other.shape(namesake)[axis] != (*value.shape)[axis]) return static_cast<int>(axis);
  }
  return -1;
}

// Which axis of each input of a prepared graph the batch is. `other`: the same model for another batch;
// nullptr: the batch is not cut, or has a fixed size. Then every microbatch has its own random numbers, too.
std::vector<BatchInput> batchInputs(const ForwardModel& model, const Graph& prepared, const Graph* other) {
  const auto axisOf = [&](const Value& value) {
    if (value.drawn && other != nullptr) return growingAxis(value, *other);
    if (value.drawn && model.fixed_batch > 0) return value.shape->empty() ? -1 : 0;
    const auto axis = model.batch_axes.find(value.name);
    return axis == model.batch_axes.end() ? -1 : axis->second;
  };
  std::vector<BatchInput> inputs;
  for (ValueId input : prepared.inputs) inputs.push_back({input, axisOf(prepared.value(input))});
  return inputs;
}

// The model at twice the rows; nullptr where it takes a batch of one row alone, which is never cut.
const Graph* atTwiceTheRows(const ForwardModel& model, int64_t rows) {
  try {
    return &model.prepared(2 * rows);
  } catch (const Error& error) {
    if (model.batch > 1 || error.code() != ErrorCode::kBadModel) throw;
    return nullptr;
  }
}

// What an evaluation gives. Further preparation tells which axis the batch is, even where it is not cut.
std::vector<ModelOutput> modelOutputs(const ForwardModel& model, const Graph& graph, int64_t rows) {
  if (model.outputs.empty()) return {};
  const Graph* other = model.batch_dimension.empty() ? nullptr : atTwiceTheRows(model, rows);
  const auto axisOf = [&](const Value& value) {
    if (other != nullptr) return growingAxis(value, *other);
    const bool has_one_row = !model.batch_dimension.empty() && !value.shape->empty();
    if (model.fixed_batch == 0) return has_one_row && value.shape->front() == 1 ? 0 : -1;
    const bool has_rows = !value.shape->empty() && value.shape->front() == model.fixed_batch;
    if (!has_rows && isConstantOutput(graph, value.name)) return -1;
    if (!value.shape->empty()) return 0;  // those of the microbatches, one behind the other
    if (model.microbatches == 1) return -1;
    fail(ErrorCode::kConfiguration,
         "the output '{}' is one number for each batch of the file, which has a fixed size; give "
         "--microbatches 1",
         value.name);
  };
  std::vector<ModelOutput> outputs;
  for (const std::string& name : model.outputs) {
    const ValueId value = madeOutput(graph, name);
    PIPESHARD_CHECK(value.valid(), "the output '{}' was lost in preparation", name);
    outputs.push_back({name, value, axisOf(graph.value(findValue(graph, name)))});
  }
  return outputs;
}

// Where no comparison of two sizes tells what a part of the batch has of an output's rows.
void requireRowsOfParts(const Graph& graph, const std::vector<ModelOutput>& outputs,
                        const TimeAxisResult& time) {
  for (const ModelOutput& output : outputs) {
    const TimeKind& kind = time.kinds[output.value.index()];
    if (output.axis < 0 || (kind.kind == TimeKind::Kind::kSplit && kind.axis == output.axis)) continue;
    throw BatchCutError(
        fmt::format(
            "the output '{}' {}: the batch cannot be cut into microbatches here: its axis {} grows with "
            "the batch, but nothing that is cut tells what a part has of it",
            output.name, shapeToString(graph.shape(output.value)), output.axis),
        "export the model without this output");
  }
}

// Microbatches that are whole batches of a file: each gives its part of the mean.
TimeAxisResult meanOfBatches(Graph& graph, const WantedValues& wanted, int64_t batches) {
  TimeAxisResult time{{}, {}, wanted.loss};
  if (!wanted.loss.valid() || batches == 1) return time;
  GraphBuilder builder(graph);
  const DataType type = graph.dataType(wanted.loss);
  const ValueId share =
      builder.addConstant("batch_share", makeScalar(type, 1 / static_cast<double>(batches)));
  time.loss = builder.addValue(graph.value(wanted.loss).name + ".share", type, graph.shape(wanted.loss));
  builder.addNode("", "Mul", {wanted.loss, share}, {time.loss});
  return time;
}

// The whole of a node's input is divided by a multiple of `rows`, the examples of a batch (a mean, as
// written), or scaled by the rewrite of a mean.
bool dividesByRows(const Graph& graph, const Node& node, int64_t rows) {
  if (node.name.ends_with("/microbatch_share")) return true;
  if (!node.is("Mul") && !node.is("Div")) return false;
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
    const Constant* constant = input.valid() ? graph.constant(input) : nullptr;
    if (constant == nullptr || elementCount(constant->shape) != 1) return false;
    const double number = numericElements(*constant).front();
    const double divisor = node.is("Div") ? number : 1 / number;
    const double times = std::round(divisor / static_cast<double>(rows));
    return times >= 1 && std::abs(divisor - times * static_cast<double>(rows)) <= 1e-6 * divisor;
  });
}

// Whether a loss has a sum over the examples that is not divided by their number, as far as constants tell.
bool hasPlainSum(const Graph& graph, const TimeAxisResult& time, int64_t rows) {
  const auto isOf = [&](ValueId value, TimeKind::Kind kind) {
    return value.valid() && time.kinds[value.index()].kind == kind;
  };
  std::vector<bool> reached(graph.values.size());
  reached[time.loss.index()] = true;
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const bool leads = std::any_of(node->outputs.begin(), node->outputs.end(),
                                   [&](ValueId output) { return output.valid() && reached[output.index()]; });
    if (!leads || dividesByRows(graph, *node, rows)) continue;
    for (const ValueId input : node->inputs) {
      if (isOf(input, TimeKind::Kind::kSplit)) return true;
      if (isOf(input, TimeKind::Kind::kSum)) reached[input.index()] = true;
    }
  }
  return false;
}

// Of a file whose batch has a fixed size: its graph, as a part of two such batches.
TimeAxisResult splitFile(Graph& graph, const ForwardModel& model, const std::vector<std::string>& outputs) {
  WantedValues wanted{model.loss};
  wanted.constants = constantParameters(graph, wanted.loss);
  for (const std::string& name : outputs) {
    if (const ValueId made = madeOutput(graph, name); made.valid()) wanted.outputs.push_back(made);
  }
  std::vector<BatchInput> inputs;
  for (const ValueId input : graph.inputs) {
    const auto axis = model.batch_axes.find(graph.value(input).name);
    inputs.push_back({input, axis == model.batch_axes.end() ? -1 : axis->second});
  }
  return splitTimeAxis(graph, wanted, inputs, {model.fixed_batch, 2 * model.fixed_batch, nullptr, 0});
}

}  // namespace

void refuseUntrainable(const ForwardModel& model, const std::vector<std::string>& frozen,
                       const std::vector<std::string>& trained) {
  if (!model.refusal.empty()) fail(ErrorCode::kBadModel, "{}", model.refusal);
  refuseLostParameters(model.parameters, frozen, trained);
  refuseUnclearWeights(model.graph);
  if (trainableParameters(model.graph).empty()) {
    fail(ErrorCode::kBadModel,
         "there is no weight to train; --train NAME_REGEX says which weights are, --freeze which are not; "
         "where weights are inputs, --weights FILE.safetensors or --weights random:NAME_REGEX says which");
  }
  requireTrainableTypes(model.graph);
}

TrainingFamily trainingFamily(const ForwardModel& model, const OptimizerSpec& optimizer,
                              const BatchCut& batch) {
  return TrainingFamily(batch.rows, batch.microbatches, [&model, &optimizer, batch](int64_t rows) {
    Graph graph = model.prepared(rows);
    BatchShare share{rows, batch.rows, nullptr, 0};
    if (batch.cut && model.fixed_batch == 0) {
      share.other_rows = rows != batch.rows ? batch.rows : batch.rows > 1 ? batch.rows / 2 : 2;
      share.other = &model.prepared(share.other_rows);
    }
    const std::vector<BatchInput> inputs = batchInputs(model, graph, share.other);
    WantedValues wanted{model.loss.valid() ? findValue(graph, lossName(model)) : ValueId()};
    wanted.constants = constantParameters(graph, wanted.loss);
    std::vector<ModelOutput> outputs;
    if (optimizer.kind == OptimizerSpec::Kind::kNone) outputs = modelOutputs(model, graph, rows);
    for (const ModelOutput& output : outputs) wanted.outputs.push_back(output.value);
    TimeAxisResult time = model.fixed_batch > 0 ? meanOfBatches(graph, wanted, batch.microbatches)
                                                : splitTimeAxis(graph, wanted, inputs, share);
    if (share.other != nullptr) requireRowsOfParts(graph, outputs, time);
    TrainingGraph training =
        buildTrainingGraph(ForwardGraph{std::move(graph), time.loss, inputs, std::move(time.totals),
                                        batch.microbatches, std::move(outputs)},
                           optimizer, model.groups, model.extras);
    if (model.in_float64) widenToFloat64(training.graph);
    verifyTrainingGraph(training);
    return training;
  });
}

void requireCuttableRows(const ForwardModel& model) {
  constexpr int64_t kRows = 4;  // of which nobody can tell whether they are one row
  OptimizerSpec none;
  none.kind = OptimizerSpec::Kind::kNone;
  try {
    trainingFamily(model, none, {kRows, 1, true}).base();
  } catch (const BatchCutError&) {
    throw;
  } catch (const Error& error) {
    // The model takes no such batch, which says nothing of examples that meet.
    if (error.code() != ErrorCode::kBadModel && error.code() != ErrorCode::kConfiguration) throw;
  }
}

std::optional<BatchCutError> examplesMeet(const ForwardModel& model,
                                          const std::vector<std::string>& outputs) {
  Graph graph = model.graph;
  try {
    splitFile(graph, model, outputs);
  } catch (const BatchCutError& error) {
    return error;
  } catch (const Error& error) {
    // A loss or an output that is no sum or no rows of the batch: others say so.
    if (error.code() != ErrorCode::kBadModel) throw;
  }
  return std::nullopt;
}

std::string sumsOverBatch(const ForwardModel& model) {
  if (!model.loss.valid()) return "";
  Graph graph = model.graph;
  try {
    const TimeAxisResult time = splitFile(graph, model, {});
    if (!time.totals.empty()) {
      return fmt::format(
          "the loss reads '{}', a sum over the batch (labels that count, say): of several batches it is the "
          "mean of theirs, which is another than that of all their examples where batches have other sums",
          graph.value(time.totals.front().part).name);
    }
    if (hasPlainSum(graph, time, model.fixed_batch))
      return "the loss is a sum over the batch, or has one: of several batches it is the mean of their sums, "
             "not the sum over all their examples";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) throw;  // examplesMeet says so, or others
  }
  return "";
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
  if (model.batch < 2 || model.fixed_batch > 0) return false;
  try {
    trainingFamily(model, optimizer, {model.batch, 1, true}).base();
    return true;
  } catch (const BatchCutError& error) {
    plan.notes.push_back("the loss is not cut along the batch: " + error.cause());
    return false;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel) throw;
    plan.notes.push_back("the loss is not cut along the batch: " + error.message());
    return false;
  }
}

}  // namespace pipeshard
