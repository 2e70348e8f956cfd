#include "planning/pipeline.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/update.h"
#include "partition/families/plan_schedule.h"
#include "partition/stages/megatron_grid.h"
#include "planning/model/file_shardings.h"
#include "planning/model/forward_model.h"
#include "planning/model/module_notes.h"
#include "planning/model/plan_description.h"
#include "planning/model/training_step.h"
#include "planning/programs/imported_gradients.h"
#include "planning/programs/plan_within_memory.h"
#include "planning/programs/step_programs.h"
#include "planning/search/searched_plan.h"

namespace pipeshard {
namespace {

// An evaluation makes no updates.
void refuseUpdateOptions(const GivenOptions& given) {
  const auto refuse = [](bool is_given, const char* flag) {
    if (is_given) fail(ErrorCode::kUsage, "{}: nothing is trained with --schedule forward-only", flag);
  };
  refuse(!given.groups.empty(), "--group");
  refuse(given.clip_norm != 0, "--clip-norm");
  refuse(given.clip_value != 0, "--clip-value");
  refuse(given.ema != 0, "--ema");
  refuse(given.loss_scale != 0, "--loss-scale");
  refuse(given.loss_scale_steps != 0, "--loss-scale-steps");
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
  if (evaluates) request.given.optimizer.kind = OptimizerSpec::Kind::kNone;
  if (!evaluates && request.given.optimizer.kind == OptimizerSpec::Kind::kNone)
    fail(ErrorCode::kUsage, "--optimizer none: nothing is trained; that goes with --schedule forward-only");
  if (evaluates) refuseUpdateOptions(request.given);
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

}  // namespace

PlannedTraining planTraining(const PlanRequest& asked, const ProgressCallback& progress,
                             Interruption* interruption) {
  PlanRequest request = completed(asked);
  PartitionOptions& options = request.partition;

  // Measured rates first: every later cost reads them from the cluster.
  const bool measured = request.profile && applyProfile(options.cluster, *request.profile);

  // The model, its loss, its batch. The number of microbatches depends on how many stages are asked for.
  ForwardModel model = loadForward(request, askedStages(options), progress);
  useFileShardings(model, options.sharding);
  if (model.optimizer && !request.optimizer_given) useFileOptimizer(model, request.given.optimizer);

  PlannedTraining planned;
  try {
    for (std::string& note : parameterNotes(model.graph, model.loss)) model.notes.push_back(std::move(note));
    if (!request.profile_note.empty()) model.notes.push_back(request.profile_note);
    planned.plan = describePlan(request, model);
    if (measured) planned.plan.profile = request.profile->digest;

    if (request.given.optimizer.kind != OptimizerSpec::Kind::kNone) {
      refuseUntrainable(model, request.given.freeze, request.given.train);
      if (std::string note = lostNote(model.parameters); !note.empty())
        planned.plan.notes.push_back(std::move(note));
      for (std::string& note : groupNotes(model.graph, model.groups))
        planned.plan.notes.push_back(std::move(note));
      for (std::string& note : muonNotes(model.graph, request.given.optimizer, model.groups))
        planned.plan.notes.push_back(std::move(note));
      noteOutputsLeftOut(model, planned.plan);
    }
    planned.trains = trainedSummary(model.graph, model.loss);

    // Layers, stages, devices, schedule, shardings, and the programs of a whole batch. A search decides first
    // what the request leaves open; then both ways are one.
    Interruption none;
    const BatchCut batch = options.stages.kind == StagesRequest::Kind::kSearched
                               ? planSearched(request, options, model, progress,
                                              interruption != nullptr ? *interruption : none, planned)
                               : planWithinMemory(request, model, options, progress, planned);

    // The shorter batch that ends an epoch keeps the plan; its programs have other shapes.
    if (planned.plan.last_batch > 0 && request.programs && !planned.last)
      planned.last = emitLastBatch(model, request.given.optimizer, batch, planned.plan);

    // So do those of shorter sequences.
    if (request.programs && !model.shorter_lengths.empty()) {
      progress("writing the programs of shorter sequences");
      planned.shorter =
          emitShorterSequences(model, request.given.optimizer, batch, planned.plan, planned.whole);
    }

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

}  // namespace pipeshard
