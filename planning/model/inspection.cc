#include "planning/model/inspection.h"

#include <functional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/prepare/dimensions.h"
#include "planning/model/microbatches.h"
#include "planning/model/module_reading.h"
#include "planning/model/training_step.h"
#include "sharding/rules/factor_rule.h"

namespace pipeshard {
namespace {

// The message with which planning refuses it; "" where it does not.
std::string refusalOf(const std::function<void()>& attempt) {
  try {
    attempt();
    return "";
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadModel && error.code() != ErrorCode::kConfiguration) throw;
    return error.message();
  }
}

// Whether a training step can be made of a batch that is taken so; "" or why not.
std::string refusalOfStep(const ForwardModel& model, const BatchCut& batch) {
  return refusalOf([&] {
    severalBatchesNote(model, {});
    const OptimizerSpec optimizer;
    trainingFamily(model, optimizer, batch).base();
  });
}

Verdict refusedOr(const std::string& refusal, std::string possible) {
  if (!refusal.empty()) return {Verdict::Kind::kRefused, refusal};
  return {Verdict::Kind::kPossible, std::move(possible)};
}

// What makes the loss of several batches another than the mean of theirs, or may, in parentheses; "" if
// nothing is known to.
std::string otherLoss(const ForwardModel& model) {
  const std::optional<BatchCutError> meeting = examplesMeet(model, {});
  const bool meets = meeting && meeting->isMeeting() && model.fixed_batch > 1;
  if (meets) return fmt::format(" (not the loss of all where examples meet: {})", meeting->cause());
  if (meeting) return fmt::format(" (the file does not show whether examples meet: {})", meeting->cause());
  const std::string sums = sumsOverBatch(model);
  return sums.empty() ? "" : fmt::format(" ({})", sums);
}

// Of a file whose batch has a fixed size.
Verdict judgeBatchOfFile(const ForwardModel& model) {
  return {Verdict::Kind::kMissing,
          fmt::format("the batch of the file has a fixed size of {} and is not cut: --microbatches N takes N "
                      "such batches in a step, and the mean of their losses{}; to have it cut, {}",
                      counted(model.fixed_batch, "example"), otherLoss(model), dynamicBatchAdvice())};
}

Verdict judgeBatch(const ForwardModel& model) {
  if (model.fixed_batch > 0) return judgeBatchOfFile(model);
  if (model.batch_dimension.empty()) {
    return {Verdict::Kind::kMissing,
            "the batch cannot be cut: no input has a symbolic batch dimension (export with dynamic_shapes)"};
  }
  // Any size shows it: two microbatches of two rows.
  return refusedOr(refusalOfStep(model, {4, 2, true}),
                   fmt::format("the batch ({}) can be cut", model.batch_dimension));
}

std::string declaredValue(const char* what, const Value& value) {
  std::vector<std::string> axes;
  for (size_t axis = 0; value.shape && axis < value.shape->size(); ++axis) {
    const int64_t size = (*value.shape)[axis];
    axes.push_back(size >= 0 ? std::to_string(size) : axisName(value, axis));
  }
  return fmt::format("{} {} {}[{}]", what, value.name, dataTypeName(value.data_type),
                     value.shape ? fmt::format("{}", fmt::join(axes, ",")) : "...");
}

}  // namespace

std::vector<std::string> declaredValues(const PlanRequest& request) {
  std::vector<std::string> lines;
  try {
    ReadOptions read = planningReadOptions(request.external_data_root);
    read.require_external_data = false;
    const Graph graph = readForPlanning(request.model_path, read);
    for (const ValueId id : graph.inputs) {
      if (!graph.initializers.contains(id)) lines.push_back(declaredValue("input", graph.value(id)));
    }
    for (const ValueId id : graph.outputs) lines.push_back(declaredValue("output", graph.value(id)));
    std::vector<std::string> options;
    for (const SymbolicDimension& dimension : symbolicDimensions(graph, request.dimensions)) {
      const auto given = request.dimensions.find(dimension.name);
      options.push_back(given == request.dimensions.end()
                            ? fmt::format("{} (--dim {}=N)", dimension.name, dimension.name)
                            : fmt::format("{} = {}", dimension.name, given->second));
    }
    if (!options.empty()) lines.push_back(fmt::format("dimensions {}", fmt::join(options, ", ")));
  } catch (const Error&) {  // what was found before says why
    lines.clear();
  }
  return lines;
}

ModelTotals countTotals(const ForwardModel& model) {
  ModelTotals totals;
  for (ValueId id : trainableParameters(model.graph)) {
    totals.parameters += elementCount(model.graph.shape(id));
    totals.parameter_bytes += model.graph.bytes(id);
  }
  for (size_t n = 0; n < model.graph.nodes.size(); ++n) {
    totals.flops += nodeFlops(model.graph, NodeId(n));
    for (ValueId id : model.graph.nodes[n].outputs) {
      if (id.valid()) totals.activation_bytes += model.graph.bytes(id);
    }
  }
  return totals;
}

std::string trainingRefusal(const ForwardModel& model, const GivenOptions& given) {
  return refusalOf([&] { refuseUntrainable(model, given.freeze, given.train); });
}

ModelVerdicts judgeModel(const ForwardModel& model, const std::string& refusal) {
  if (!model.loss.valid()) {
    return {{Verdict::Kind::kMissing,
             "the model has no loss; --loss says which (such as --loss cross-entropy:LOGITS,LABELS); without "
             "one it can be evaluated: --schedule forward-only"},
            std::nullopt};
  }
  const std::string why =
      refusal.empty() ? refusalOfStep(model, {model.batch, model.microbatches, false}) : refusal;
  return {refusedOr(why, "every operator on the way has a gradient"), judgeBatch(model)};
}

}  // namespace pipeshard
