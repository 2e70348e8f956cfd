#include "planning/programs/step_programs.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/ids_format.h"
#include "ir/base/parallel.h"
#include "onnx_import/prepare/input_range.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/plan_schedule.h"
#include "planning/model/sequence_lengths.h"
#include "planning/programs/kept_tensors.h"
#include "runtime/files/weights.h"
#include "sharding/stage/sharding_plan.h"

namespace pipeshard {
namespace {

struct InputLimits {
  IntegerRange range;
  std::optional<AllowedIntegers> allowed;
};

std::map<std::string, InputLimits> inputLimits(const Graph& graph) {
  std::map<std::string, InputLimits> limits;
  for (ValueId input : graph.inputs)
    limits[graph.value(input).name] = {inputRange(graph, input), allowedIntegers(graph, input)};
  return limits;
}

// What emitPrograms cannot know: the whole batch's shapes, ranges of integer inputs, types in the weight
// files.
void completeProgram(const ForwardModel& model, const std::map<std::string, InputLimits>& limits,
                     Program& program) {
  for (ProgramInput& input : program.inputs) {
    const auto found = limits.find(input.name);
    if (found == limits.end()) continue;
    input.low = found->second.range.low;
    input.high = found->second.range.high;
    input.allowed = found->second.allowed;
  }
  for (Buffer& buffer : program.buffers.stored()) {
    const auto original = model.source_types.find(sourceName(buffer));
    if (buffer.source && original != model.source_types.end()) buffer.source_type = original->second;
  }
}

// What steps of the last batch keep, they find as those of whole batches leave it.
void requireKeptAlike(const ProgramSet& last, const ProgramSet& whole) {
  for (const RankId rank : last.ranks.ids()) {
    const KeptTensors of_whole = keptTensors(whole, rank);
    for (const auto& [name, place] : keptTensors(last, rank)) {
      const auto found = of_whole.find(name);
      if (found == of_whole.end() || found->second == place) continue;
      fail(ErrorCode::kConfiguration,
           "rank {} would keep '{}' in another sharding than in the steps of whole batches", rank, name);
    }
  }
}

// Steps of both work on the same tensors.
void requireSameTensors(const ProgramSet& shorter, const ProgramSet& longest) {
  for (const RankId rank : longest.ranks.ids()) {
    const KeptTensors one = keptTensors(shorter, rank), other = keptTensors(longest, rank);
    if (one == other) continue;
    const auto differs = [](const KeptTensors& from, const KeptTensors& in) {
      return std::find_if(from.begin(), from.end(), [&](const auto& tensor) {
        const auto found = in.find(tensor.first);
        return found == in.end() || found->second != tensor.second;
      });
    };
    auto found = differs(one, other);
    if (found == one.end()) found = differs(other, one);
    fail(ErrorCode::kConfiguration,
         "rank {} would keep '{}' across steps, which it keeps otherwise, or does not, with the longest "
         "sequences; plan for one length",
         rank, found->first);
  }
}

}  // namespace

void completePrograms(const ForwardModel& model, EmittedPrograms& programs) {
  const std::map<std::string, InputLimits> limits = inputLimits(model.graph);
  for (ProgramKind& kind : programs.set.kinds) completeProgram(model, limits, kind.program);
}

bool mayRenameFactors(const ForwardModel& model, const Plan& plan, const TrainingFamily& family) {
  const int64_t planned = (model.batch + plan.microbatches - 1) / plan.microbatches;
  const int64_t rows = family.largestMicrobatch();
  return planned != rows && (planned == 1 || rows == 1);
}

void renameFactors(const Graph& planned, const Graph& other, Plan& plan) {
  for (StagePlan& stage : plan.stages) {
    if (stage.sharding) renameFactors(planned, other, *stage.sharding);
  }
}

StepPrograms emitStep(const ForwardModel& model, const OptimizerSpec& optimizer, const BatchCut& batch,
                      Plan plan, const std::function<void(double)>& progress) {
  const TrainingFamily family = trainingFamily(model, optimizer, batch);
  const Schedule schedule = firstMicrobatches(scheduleOf(plan), batch.microbatches * plan.updates_per_step);
  if (hasShardedStage(plan) && mayRenameFactors(model, plan, family)) {
    const BatchCut whole{model.batch, plan.microbatches, batch.cut};
    renameFactors(trainingFamily(model, optimizer, whole).base().graph, family.base().graph, plan);
  }
  plan.microbatches = batch.microbatches;
  family.makeMembers();
  StepPrograms step;
  std::atomic<bool> failed = false;  // the first: nobody needs the other
  parallelFor(processorCount(), 2, [&](int32_t i) {
    if (i == 1) {
      step.reference = emitOnOneDevice(family, plan, schedule, [&](double) {
        if (failed) fail(ErrorCode::kInternal, "the programs of the ranks cannot be made");
      });
      return;
    }
    try {
      step.ranks = emitProgramSet(family, plan, schedule, progress);
    } catch (...) {
      failed = true;
      throw;
    }
  });
  completePrograms(model, step.ranks);
  completeProgram(model, inputLimits(model.graph), step.reference.program);
  return step;
}

std::string whyWholeBatchesOnly(const Plan& plan) {
  if (plan.batch_dimension.empty()) return "the batch of the model's file has one size";
  if (!scheduleOf(plan).asynchronous()) return "";
  return fmt::format("under the schedule {} a step takes whole windows of updates",
                     scheduleSpecToString(plan.schedule));
}

StepMakeup stepMakeup(const Plan& plan) {
  return {plan.batch_dimension, plan.microbatches, plan.updates_per_step};
}

StepPrograms emitLastBatch(const ForwardModel& model, const OptimizerSpec& optimizer, const BatchCut& whole,
                           Plan& plan, const StepPrograms& of_whole) {
  for (;;) {
    std::optional<Error> failure;
    try {
      StepPrograms last =
          emitStep(model, optimizer, {plan.last_batch, plan.last_microbatches, whole.cut}, plan);
      requireKeptAlike(last.ranks.set, of_whole.ranks.set);
      return last;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kConfiguration || !hasShardedStage(plan)) throw;
      failure = error;
    }
    if (plan.last_microbatches == 1) {
      fail(failure->code(),
           "the last batch of {} fits how the stages are sharded in no number of microbatches; {}, or plan "
           "without a --method that cuts the batch: with --method tensor-parallel, or with stages of one "
           "device (--stages uniform:N), which take any number of examples. As one microbatch: {}",
           counted(plan.last_batch, "example"), kWithoutLastBatch, failure->message());
    }
    --plan.last_microbatches;
  }
}

std::vector<StepPrograms> emitShorterSequences(const ForwardModel& model, const OptimizerSpec& optimizer,
                                               const BatchCut& batch, const Plan& plan,
                                               const StepPrograms& longest) {
  std::vector<StepPrograms> steps;
  for (const int64_t length : plan.shorter_lengths) {
    try {
      const ForwardModel shorter = ofShorterSequences(model, length);
      steps.push_back(emitStep(shorter, optimizer, batch, plan));
      requireSameTensors(steps.back().ranks.set, longest.ranks.set);
    } catch (Error& error) {
      error.addContext(fmt::format("the programs with {} = {}", plan.length_dimension, length));
      throw;  // whatever kind of error it is
    }
  }
  return steps;
}

}  // namespace pipeshard
