#include "planning/programs/plan_within_memory.h"

#include <algorithm>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "ir/base/ids.h"
#include "ir/base/ids_format.h"
#include "partition/cut/shard_stages.h"
#include "partition/families/plan_schedule.h"
#include "partition/stages/partition_training.h"
#include "planning/programs/memory_shortage.h"
#include "planning/programs/step_programs.h"
#include "runtime/data/data.h"

namespace pipeshard {
namespace {

void refuseDataParallelism(const ForwardModel& model) {
  if (model.batch > 1 && !model.batch_dimension.empty()) return;
  fail(ErrorCode::kConfiguration,
       "the plan has stages of several data-parallel devices, but {}; export the model with a dynamic batch "
       "axis (torch.export.Dim(\"batch\")) and a batch that can be shared, or use one device per stage, or "
       "stages that a --method shards",
       model.batch_dimension.empty() ? "no input of the model has a symbolic batch dimension"
                                     : "the batch has one example");
}

// Decides the plan. A batch that is cut nowhere is left as it is, so that models that cannot be cut still
// run.
BatchCut partitionModel(const ForwardModel& model, const OptimizerSpec& optimizer,
                        const PartitionOptions& options, const ProgressCallback& progress,
                        PlannedTraining& planned) {
  Plan& plan = planned.plan;
  TrainingGraph& training = planned.training;
  const Plan undecided = plan;
  const bool first = options.chosen ? options.chosen->cut_batch : model.microbatches > 1;
  for (const bool cut : {first, true}) {
    plan = undecided;
    const BatchCut batch{model.batch, model.microbatches, cut};
    plan.cut_batch = cut;
    training = trainingFamily(model, optimizer, batch).base();
    partitionTraining(training, options, plan);
    if (hasDataParallelStage(plan)) refuseDataParallelism(model);
    if (!cut && !options.chosen &&
        (hasDataParallelStage(plan) || (hasShardedStage(plan) && canSumOverBatch(model, optimizer, plan))))
      continue;
    planned.combinations = shardStages(training, options.sharding, plan, progress);
    return batch;
  }
  PIPESHARD_CHECK(false, "nothing was decided");
  return {};
}

// As the programs will list them, without types.
std::vector<ProgramInput> dataInputs(const ForwardModel& model, const Graph& graph) {
  std::vector<ProgramInput> inputs;
  for (ValueId input : graph.inputs) {
    const auto axis = model.batch_axes.find(graph.value(input).name);
    inputs.push_back({graph.value(input).name, DataType::kUndefined, graph.shape(input),
                      axis == model.batch_axes.end() ? -1 : axis->second});
    inputs.back().drawn = graph.value(input).drawn;
    if (model.fixed_batch > 0 && axis != model.batch_axes.end())
      inputs.back().shape[axis->second] *= model.batch;
  }
  return inputs;
}

// The rest of an epoch; what no input takes becomes a note.
int64_t lookAtData(const PlanRequest& request, const std::vector<ProgramInput>& inputs,
                   const ShorterInputs& shorter, Plan& plan) {
  DataDescription data = request.data;
  data.end.parts = stepMakeup(plan);
  const DataOutline outline = outlineData(data, inputs, shorter);
  if (!outline.too_few.empty()) {
    plan.notes.push_back(fmt::format("{}: `run` and `validate` would refuse these data: {}",
                                     request.data.path, outline.too_few));
  }
  if (!outline.unused.empty()) plan.notes.push_back(fmt::format("{}: {}", request.data.path, outline.unused));
  return outline.last_batch;
}

// Of data that leave a shorter batch which such a plan cannot have, as `why` says.
void noteRest(const PlanRequest& request, const ForwardModel& model, const std::string& why, Plan& plan) {
  if (request.data.path.empty()) return;
  const bool is_fixed = model.batch_dimension.empty();
  std::vector<ProgramInput> inputs = dataInputs(model, is_fixed ? model.graph : model.prepared(model.batch));
  for (ProgramInput& input : inputs) {
    if (input.axis >= 0) input.shape.at(input.axis) *= plan.updates_per_step;
  }
  const int64_t rest = lookAtData(request, inputs, {}, plan);
  if (rest > 0) {
    plan.notes.push_back(
        fmt::format("the last {} of {} {} no step, and {}: `run` and `validate` take these data with "
                    "--drop-last, which leaves {} out",
                    rest == 1 ? "example" : counted(rest, "example"), request.data.path,
                    rest == 1 ? "fills" : "fill", why, rest == 1 ? "it" : "them"));
  }
}

// Rows of the shorter batch that ends an epoch, as told or as the data file says; 0 where plans take whole
// batches only.
int64_t lastBatchRows(const PlanRequest& request, const ForwardModel& model, Plan& plan) {
  int64_t rows = request.last_batch;
  const std::string why = whyWholeBatchesOnly(plan);
  if (rows == 0 && !why.empty()) {
    noteRest(request, model, why, plan);
    return 0;
  }
  if (model.batch_dimension.empty()) {
    fail(ErrorCode::kUsage,
         "--last-batch {}: no input of the model has a symbolic batch dimension, so it takes no shorter "
         "batch; {}",
         rows, kWithoutLastBatch);
  }
  if (!why.empty()) {
    fail(ErrorCode::kConfiguration,
         "--last-batch {}: under the schedule {} a step takes whole windows; leave it out (`run` and "
         "`validate` leave out the rest of a file with --drop-last)",
         rows, scheduleSpecToString(plan.schedule));
  }
  if (rows > 0 && request.data.end.drop_last)
    fail(ErrorCode::kUsage, "--last-batch {}: --drop-last leaves such examples out; give one of the two",
         rows);
  if (rows == 0 || !request.data.path.empty()) {
    std::vector<ProgramInput> inputs;
    ShorterInputs shorter;
    if (!request.data.path.empty()) {
      inputs = dataInputs(model, model.prepared(model.batch));
      for (const int64_t length : model.shorter_lengths)
        shorter.push_back(dataInputs(model, model.prepared_at(model.batch, length)));
    }
    const int64_t rest = lookAtData(request, inputs, shorter, plan);
    if (rows > 0 && rows != rest)
      fail(ErrorCode::kUsage, "--last-batch {}: behind the last batch of {} {} leaves {}; leave it out", rows,
           model.batch, request.data.path, counted(rest, "example"));
    rows = rest;
  }
  if (rows == 0 || rows < model.batch) return rows;
  fail(ErrorCode::kUsage, "--last-batch {}: found a last batch that is not shorter than the batch of {}",
       rows, model.batch);
}

void refuseAsynchronousLengths(const Plan& plan) {
  if (plan.shorter_lengths.empty() || !scheduleOf(plan).asynchronous()) return;
  fail(ErrorCode::kConfiguration,
       "--dim {}: under the schedule {} a step is a window of updates, which has sequences of one length; "
       "give one",
       plan.length_dimension, scheduleSpecToString(plan.schedule));
}

// As many microbatches as the whole batch has, if every device gets a row of each.
void decideLastBatch(int64_t rows, Plan& plan) {
  if (rows == 0) return;
  int widest = 1;
  for (const StagePlan& stage : plan.stages) widest = std::max(widest, stage.mesh_shape.at(0));
  if (rows < widest) {
    fail(ErrorCode::kConfiguration,
         "the last batch of {} example(s) cannot be shared by {} data-parallel devices; {}, or use narrower "
         "stages",
         rows, widest, kWithoutLastBatch);
  }
  plan.last_batch = rows;
  plan.last_microbatches = std::min(plan.microbatches, rows / widest);
}

// Those of its stage: what is planned for a stage is planned for all of them.
const std::vector<RankId>& devicesBeside(const Plan& plan, RankId rank) {
  const auto has = [rank](const StagePlan& stage) {
    return std::find(stage.devices.begin(), stage.devices.end(), rank) != stage.devices.end();
  };
  return std::find_if(plan.stages.begin(), plan.stages.end(), has)->devices;
}

// What devices lack for the programs of the plan. Those of other sizes of steps (the shorter batch that ends
// an epoch, shorter sequences; they keep the plan) are only made where those of whole batches fit.
Shortage emitAllSizes(const PlanRequest& request, const ForwardModel& model, const BatchCut& batch,
                      const PartitionOptions& asked, const ProgressCallback& progress,
                      PlannedTraining& planned) {
  const OptimizerSpec& optimizer = request.given.optimizer;
  planned.last.reset();
  planned.shorter.clear();
  progress("writing the programs of the ranks");
  const WorkShare work;
  const auto tell = [&](double share) { progress("writing the programs of the ranks" + work.text(share)); };
  planned.whole = emitStep(model, optimizer, batch, planned.plan, tell);
  progress("planning the memory of the ranks");
  const Shortage of_whole = largestShortage(asked, planned);
  if (of_whole.rank.valid()) return of_whole;
  if (planned.plan.last_batch > 0)
    planned.last = emitLastBatch(model, optimizer, batch, planned.plan, planned.whole);
  if (!model.shorter_lengths.empty()) {
    progress("writing the programs of shorter sequences");
    planned.shorter = emitShorterSequences(model, optimizer, batch, planned.plan, planned.whole);
  }
  return largestShortage(asked, planned);
}

// Of a plan that fits without its last batch.
std::string lastBatchNote(const PlannedTraining& planned) {
  if (!planned.last || !planned.shorter.empty()) return "";
  const int64_t microbatches = planned.plan.last_microbatches;
  return fmt::format("; whole batches fit, the last one of {} as {} does not: {}",
                     counted(planned.plan.last_batch, "example"),
                     microbatches == 1 ? "one microbatch" : fmt::format("{} microbatches", microbatches),
                     kWithoutLastBatch);
}

// What devices have, by itself: nothing else is planned for them yet.
std::map<int64_t, int64_t> memoryAsIs(const PartitionOptions& options) {
  std::map<int64_t, int64_t> memory;
  for (const RankId device : idsBelow<RankId>(options.cluster.deviceCount())) {
    const int64_t has = options.sharding.memoryOf(options.cluster, {device});
    memory[has] = has;
  }
  return memory;
}

}  // namespace

BatchCut planWithinMemory(const PlanRequest& request, const ForwardModel& model,
                          const PartitionOptions& asked, const ProgressCallback& progress,
                          PlannedTraining& planned) {
  constexpr int kAttempts = 8;
  constexpr int kAttemptsBeyond = 3;
  const Plan undecided = planned.plan;
  PartitionOptions options = asked;
  std::map<int64_t, int64_t>& limits = options.sharding.planned_memory = memoryAsIs(asked);
  Shortage least;
  std::string why;  // of `least`
  // what is foreseen may be more than what is needed: then a little more is tried
  std::optional<Error> refused;
  for (int attempt = 0; attempt < (refused ? kAttemptsBeyond : kAttempts); ++attempt) {
    progress("building the training graph and partitioning");
    planned.plan = undecided;
    BatchCut batch;
    try {
      batch = partitionModel(model, request.given.optimizer, options, progress, planned);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      if (attempt > 0) break;
      refused = error;
      for (auto& [has, limit] : limits) limit += limit / 4;
      continue;
    }
    refuseAsynchronousLengths(planned.plan);
    decideLastBatch(lastBatchRows(request, model, planned.plan), planned.plan);
    for (StagePlan& stage : planned.plan.stages) {
      if (stage.sharding)
        stage.sharding->memory_limit = asked.sharding.memoryOf(asked.cluster, stage.devices);
    }
    if (!request.programs) return batch;
    const Shortage shortage = emitAllSizes(request, model, batch, asked, progress, planned);
    if (!shortage.rank.valid()) return batch;
    if (!least.rank.valid() || shortage.excess() < least.excess()) {
      least = shortage;
      why = lastBatchNote(planned);
    }
    const std::vector<RankId>& devices = devicesBeside(planned.plan, shortage.rank);
    int64_t& limit = limits.at(asked.sharding.memoryOf(asked.cluster, devices));
    limit -= std::max(shortage.excess(), limit / 100);
    if (limit <= 0 || !hasShardedStage(planned.plan)) break;
  }
  if (refused) throw *refused;
  fail(ErrorCode::kOutOfMemory, "{}: device {} needs {} bytes at least, and has {}{}",
       asked.sharding.memory_bytes == 0 ? "--cluster " + asked.cluster.name
                                        : fmt::format("--memory {}", asked.sharding.memory_bytes),
       least.rank, least.needed, least.room, why);
}

}  // namespace pipeshard
