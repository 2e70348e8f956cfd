#include "sharding/stage/exhaustive.h"

#include <algorithm>

#include "ir/base/error.h"
#include "sharding/stage/stage_context.h"

namespace pipeshard {

namespace {

struct InputChoices {
  ValueId value;
  std::vector<ShardingSpec> specs;
};

// Replicated, then cut along each axis by mesh axis 0.
InputChoices choicesOf(const TrainingGraph& training, ValueId value, const LogicalMesh& mesh) {
  const Shape& shape = training.graph.shape(value);
  InputChoices choices{value, {replicated(shape.size())}};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    ShardingSpec spec = replicated(shape.size());
    spec.axes[axis] = {0};
    if (specFault(spec, shape, mesh).empty()) choices.specs.push_back(std::move(spec));
  }
  return choices;
}

std::vector<InputChoices> inputsOf(const TrainingGraph& training, const std::vector<StageValue>& values,
                                   const LogicalMesh& mesh) {
  std::vector<InputChoices> inputs;
  for (const BatchInput& input : training.inputs) {
    if (values[input.value.index()].held) inputs.push_back(choicesOf(training, input.value, mesh));
  }
  for (const Parameter& parameter : training.parameters) {
    if (values[parameter.value.index()].held) inputs.push_back(choicesOf(training, parameter.value, mesh));
  }
  std::erase_if(inputs,
                [&](const InputChoices& input) { return values[input.value.index()].fixed_replicated; });
  return inputs;
}

double countedWithin(const std::vector<InputChoices>& inputs, int64_t limit) {
  double count = 1;
  for (const InputChoices& input : inputs) count *= static_cast<double>(input.specs.size());
  if (count <= static_cast<double>(limit)) return count;
  fail(ErrorCode::kConfiguration,
       "method exhaustive: {} inputs and parameters have {:.3g} combinations of shardings, more than the {} "
       "that are allowed; use auto, or a smaller model",
       inputs.size(), count, limit);
}

}  // namespace

std::vector<Combination> exhaustiveSharding(const TrainingGraph& training, const std::vector<NodeId>& nodes,
                                            const LogicalMesh& mesh, const CostModel& model,
                                            const ShardStageOptions& options, int64_t limit,
                                            const std::function<void(double)>& progress) {
  ShardStageOptions completing = options;
  completing.method = {ShardingKind::kAuto};
  completing.memory_bytes.reset();  // what does not fit is listed too
  StageContext context(training, nodes, mesh, model, completing);
  const std::map<ValueId, ShardingSpec> given = context.limits.given;
  std::vector<InputChoices> inputs = inputsOf(training, context.values, mesh);
  std::erase_if(inputs, [&](const InputChoices& input) {
    return given.contains(context.values[input.value.index()].shares);
  });
  const double count = countedWithin(inputs, limit);
  std::vector<Combination> result;
  std::vector<size_t> choice(inputs.size(), 0);
  for (size_t position = inputs.size() + 1; position > 0;) {
    if (progress) progress(static_cast<double>(result.size()) / count);
    Combination& combination = result.emplace_back();
    for (size_t index = 0; index < inputs.size(); ++index) {
      const ShardingSpec& spec = inputs[index].specs[choice[index]];
      context.limits.given[context.values[inputs[index].value.index()].shares] = spec;
      combination.inputs.emplace_back(training.graph.value(inputs[index].value).name, spec);
    }
    const ShardingProblem problem(training, nodes, mesh, model, completing, context.limits);
    const ShardingResult found = context.solve(problem, {});
    combination.compute_ns = found.compute_ns;
    combination.communication_ns = found.communication_ns;
    combination.memory_bytes = found.memory_bytes;
    const StagePrice price =
        priceStage(training, nodes, context.values, found.sharding, model, completing.microbatches);
    combination.communication_bytes =
        communicationBytes(training, nodes, found.sharding, price, completing.microbatches);
    for (position = inputs.size();
         position > 0 && ++choice[position - 1] == inputs[position - 1].specs.size(); --position) {
      choice[position - 1] = 0;
    }
  }
  std::stable_sort(result.begin(), result.end(), [](const Combination& a, const Combination& b) {
    return std::pair{a.compute_ns + a.communication_ns, a.communication_ns} >
           std::pair{b.compute_ns + b.communication_ns, b.communication_ns};
  });
  return result;
}

}  // namespace pipeshard
