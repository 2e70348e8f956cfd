#include "planning/pipeline.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/update.h"
#include "partition/cut/stage_shardings.h"
#include "partition/families/plan_schedule.h"
#include "partition/stages/megatron_grid.h"
#include "planning/model/file_shardings.h"
#include "planning/model/forward_model.h"
#include "planning/model/microbatches.h"
#include "planning/model/module_notes.h"
#include "planning/model/plan_description.h"
#include "planning/model/training_step.h"
#include "planning/programs/imported_gradients.h"
#include "planning/programs/plan_within_memory.h"
#include "planning/programs/step_programs.h"
#include "planning/search/searched_plan.h"
#include "sharding/batch/time_axis.h"

namespace pipeshard {
namespace {

// An evaluation makes no updates.
void refuseUpdateOptions(const PlanRequest& request) {
  const GivenOptions& given = request.given;
  const auto refuse = [](bool is_given, const char* flag) {
    if (is_given) fail(ErrorCode::kUsage, "{}: nothing is trained with --schedule forward-only", flag);
  };
  refuse(!given.groups.empty(), "--group");
  refuse(given.clip_norm != 0, "--clip-norm");
  refuse(given.clip_value != 0, "--clip-value");
  refuse(given.ema != 0, "--ema");
  refuse(given.loss_scale != 0, "--loss-scale");
  refuse(given.loss_scale_steps != 0, "--loss-scale-steps");
  refuse(request.optimizer_given && given.optimizer.kind != OptimizerSpec::Kind::kNone, "--optimizer");
  refuse(!request.partition.recomputation.isOnly(Recomputation::kNever), "--recompute");
  refuse(given.bucket_bytes != GivenOptions().bucket_bytes, "--bucket");
  refuse(request.accumulate > 1, "--accumulate");
}

// What options imply for each other, before the model is read: so that mistakes are told at once.
PlanRequest completed(PlanRequest request) {
  PartitionOptions& options = request.partition;
  useMegatronGrid(options);
  if (options.stages.kind != StagesRequest::Kind::kSearched && (request.submeshes || request.logical_meshes))
    fail(ErrorCode::kUsage,
         "--submeshes and --logical-meshes go with --stages auto, which chooses among them");
  const AskedSchedule schedule = askSchedule(options.schedule);
  const bool evaluates = !schedule.given && familyOf(schedule.spec).forward_only;
  if (!evaluates && request.given.optimizer.kind == OptimizerSpec::Kind::kNone)
    fail(ErrorCode::kUsage, "--optimizer none: nothing is trained; that goes with --schedule forward-only");
  if (evaluates) refuseUpdateOptions(request);
  if (evaluates) request.given.optimizer.kind = OptimizerSpec::Kind::kNone;
  if (evaluates && !request.length_dimension.empty()) {
    fail(ErrorCode::kUsage,
         "--dim {}: several lengths of sequences are for a plan that trains (`run --eval` evaluates all of "
         "them); give one with --schedule forward-only",
         request.length_dimension);
  }
  return request;
}

// A training step in a file comes with its optimizer.
void useFileOptimizer(ForwardModel& model, OptimizerSpec& optimizer) {
  if (optimizer.kind == OptimizerSpec::Kind::kNone) return;
  const ImportedOptimizer& imported = *model.optimizer;
  if (!imported.learning_rate.empty()) {
    fail(ErrorCode::kUsage,
         "the file's optimizer is {}, but its learning rate is the input '{}'; say it: --optimizer {}",
         optimizerToString(imported.spec), imported.learning_rate, optimizerToString(imported.spec));
  }
  optimizer = imported.spec;
  model.notes.push_back(fmt::format("the optimizer is the file's: {} (--optimizer takes another)",
                                    optimizerToString(imported.spec)));
}

// Nothing of a file is left out without a word.
void noteOutputsLeftOut(const ForwardModel& model, Plan& plan) {
  if (model.outputs.empty()) return;
  plan.notes.push_back(
      fmt::format("{} beside the loss, which training does not compute (`--schedule forward-only` with `run "
                  "--outputs FILE.npz` does): {}",
                  counted(std::ssize(model.outputs), "output"), fmt::join(model.outputs, ", ")));
}

// Refuses what cannot be trained, and notes with what the rest is.
void describeTraining(const PlanRequest& request, const ForwardModel& model, Plan& plan) {
  refuseUntrainable(model, request.given.freeze, request.given.train);
  if (std::string note = lostNote(model.parameters); !note.empty()) plan.notes.push_back(std::move(note));
  for (std::string& note : groupNotes(model.graph, model.groups)) plan.notes.push_back(std::move(note));
  for (std::string& note : muonNotes(model.graph, request.given.optimizer, model.groups))
    plan.notes.push_back(std::move(note));
  noteOutputsLeftOut(model, plan);
  // One row alone that was chosen has nothing to meet: such a loss would not learn.
  const bool chosen = model.chosen.contains(model.batch_dimension);
  if (chosen && model.batch == 1 && !request.uncut) requireCuttableRows(model);
}

PlannedTraining planAsked(const PlanRequest& asked, const ProgressCallback& progress,
                          Interruption* interruption) {
  PlanRequest request = completed(asked);
  PartitionOptions& options = request.partition;

  // Measured rates first: every later cost reads them from the cluster.
  const bool measured = request.profile && applyProfile(options.cluster, *request.profile);

  // The model, its loss, its batch. The number of microbatches depends on how many stages are asked for.
  AskedStages stages = askedStages(options);
  stages.widest = std::max(stages.widest, static_cast<int>(request.fewest_rows));
  ForwardModel model = loadForward(request, stages, progress);
  useFileShardings(model, options.sharding);
  if (model.optimizer && !request.optimizer_given) useFileOptimizer(model, request.given.optimizer);

  PlannedTraining planned;
  try {
    for (std::string& note : parameterNotes(model.graph, model.loss)) model.notes.push_back(std::move(note));
    if (!request.profile_note.empty()) model.notes.push_back(request.profile_note);
    planned.plan = describePlan(request, model);
    if (measured) planned.plan.profile = request.profile->digest;

    const bool trains = request.given.optimizer.kind != OptimizerSpec::Kind::kNone;
    if (trains) describeTraining(request, model, planned.plan);
    const std::vector<std::string> outputs = trains ? std::vector<std::string>() : model.outputs;
    if (std::string note = severalBatchesNote(model, outputs); !note.empty())
      planned.plan.notes.push_back(std::move(note));
    planned.trains = trains ? trainedSummary(model.graph, model.loss) : "evaluates; trains nothing";

    // Layers, stages, devices, schedule, shardings, and the programs of steps of all sizes. A search decides
    // first what the request leaves open; then both ways are one.
    Interruption none;
    const BatchCut batch = options.stages.kind == StagesRequest::Kind::kSearched
                               ? planSearched(request, options, model, progress,
                                              interruption != nullptr ? *interruption : none, planned)
                               : planWithinMemory(request, model, options, progress, planned);

    if (!request.programs && batch.rows % batch.microbatches != 0)
      requireFittingMicrobatches(trainingFamily(model, request.given.optimizer, batch), planned.plan);

    // Last, since it reads the batch that the single-device program reads: the file's own backward pass.
    if (request.programs)
      planned.imported =
          importedGradients(model, planned.training, planned.whole.reference.program, planned.plan.notes);
  } catch (Error& error) {
    error.addContext(request.model_path);
    throw;  // whatever kind of error it is
  }
  return planned;
}

// Where the batch cannot be cut: what helps, by what was asked for.
[[noreturn]] void failUncut(const PlanRequest& asked, const BatchCutError& error) {
  const std::string advice =
      asked.accumulate > 1
          ? fmt::format("--accumulate {} makes as many microbatches of a step, or more: leave it out{}",
                        asked.accumulate,
                        asked.microbatches > 1 ? ", and take one microbatch (--microbatches 1)" : "")
          : "With one microbatch, too, devices of a stage share its rows: take stages of one device, or a "
            "--method that leaves the batch whole (tensor-parallel)";
  fail(ErrorCode::kBadModel, "{}: {}. {}, or {}", asked.model_path, error.cause(), advice, error.wayOut());
}

// Where a batch cannot be cut into single rows: with at least two in each microbatch, in as many as are asked
// for, of a batch that is chosen, or else in as many as are chosen then. Nothing where that is no way out.
std::optional<PlannedTraining> planOfTwoRows(const PlanRequest& asked, const BatchCutError& error,
                                             const ProgressCallback& progress, Interruption* interruption) {
  if (error.rows() != 1 || asked.microbatches == 1 ||
      asked.partition.stages.kind == StagesRequest::Kind::kSearched)
    return std::nullopt;
  PlanRequest larger = asked;
  larger.fewest_rows = 2;
  larger.uncut = error.cause();
  for (const int64_t microbatches : {asked.microbatches, int64_t{0}}) {
    larger.microbatches = microbatches;
    try {
      PlannedTraining planned = planAsked(larger, progress, interruption);
      if (planned.plan.microbatches > 1) return planned;
    } catch (const Error& other) {
      if (other.code() != ErrorCode::kBadModel && other.code() != ErrorCode::kConfiguration) throw;
    }
    if (microbatches == 0) break;
  }
  return std::nullopt;
}

}  // namespace

PlannedTraining planTraining(const PlanRequest& asked, const ProgressCallback& progress,
                             Interruption* interruption) {
  PlanRequest whole = asked;
  try {
    return planAsked(asked, progress, interruption);
  } catch (const BatchCutError& error) {
    if (asked.accumulate > 1) failUncut(asked, error);
    std::optional<PlannedTraining> larger = planOfTwoRows(asked, error, progress, interruption);
    const bool as_asked =
        larger && (asked.microbatches == 0 || larger->plan.microbatches == asked.microbatches);
    if (as_asked) return std::move(*larger);
    if (larger) {
      const Plan& plan = larger->plan;
      fail(ErrorCode::kBadModel,
           "{}: {}. With more than one row in each microbatch it can be cut (--dim {}={} --microbatches {})",
           asked.model_path, error.cause(), plan.batch_dimension, plan.dimensions.at(plan.batch_dimension),
           plan.microbatches);
    }
    if (asked.microbatches > 1) throw;
    whole.microbatches = 1;
    whole.uncut = error.cause();
  }
  try {
    return planAsked(whole, progress, interruption);
  } catch (const BatchCutError& error) {
    failUncut(asked, error);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    throw Error(error.code(),
                fmt::format("{}; more than one microbatch cannot be: {}", error.message(), *whole.uncut));
  }
}

}  // namespace pipeshard
