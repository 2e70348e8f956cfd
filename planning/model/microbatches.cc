#include "planning/model/microbatches.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "ir/base/counted.h"
#include "ir/base/error.h"
#include "onnx_import/exporter/module_mode.h"
#include "planning/model/batch_dimension.h"
#include "planning/model/training_step.h"

namespace pipeshard {
namespace {

// Several batches for one update are one larger batch in more microbatches, of the same size.
void accumulate(int64_t batches, ForwardModel& model) {
  model.batch *= batches;
  model.microbatches *= batches;
  model.dimensions[model.batch_dimension] = model.batch;
  model.notes.push_back(fmt::format("an update takes {} batches (--accumulate): {} = {}", batches,
                                    model.batch_dimension, model.batch));
}

// How many batches of the file --dim batch=N asks for; 0: it does not say.
int64_t batchesAskedFor(const PlanRequest& request, ForwardModel& model) {
  const std::optional<int64_t> examples = takeUsualBatch(model.dimensions);
  if (!examples) return 0;
  const int64_t batches = *examples / model.fixed_batch;
  const bool whole = batches > 0 && *examples % model.fixed_batch == 0;
  model.asked_examples = *examples;
  // A look at the model asks for no number of microbatches.
  const bool any = request.microbatches == 0 || request.any_sizes;
  if (whole && (any || request.microbatches == batches)) return batches;
  const std::string fitting =
      request.any_sizes
          ? fmt::format("give a multiple of {}", model.fixed_batch)
          : fmt::format("give --microbatches N alone, for N * {} examples in a step", model.fixed_batch);
  fail(ErrorCode::kConfiguration,
       "a batch of {} does not fit: the batch of the file has a fixed size of {}, and each microbatch is "
       "one; {}, or {}",
       *examples, model.fixed_batch, fitting, dynamicBatchAdvice());
}

// A graph without a batch, symbolic or fixed, is taken whole.
void refuseSeveralBatches(const PlanRequest& request) {
  const bool cuts = request.microbatches > 1;
  if (!cuts && request.accumulate == 1) return;
  fail(ErrorCode::kConfiguration,
       "{} {} needs a batch, but no input has a symbolic batch dimension, and the inputs do not all have the "
       "same number of examples on axis 0; {}, or leave it out",
       cuts ? "--microbatches" : "--accumulate", cuts ? request.microbatches : request.accumulate,
       dynamicBatchAdvice());
}

// Every microbatch is a batch of the file.
void takeFixedBatches(const PlanRequest& request, const AskedStages& stages, ForwardModel& model) {
  const int64_t asked = batchesAskedFor(request, model);
  model.microbatches =
      std::max({int64_t{1}, asked, request.microbatches, stages.microbatches}) * request.accumulate;
  model.batch = model.microbatches;
  const std::string fixed =
      fmt::format("the batch of the file has a fixed size of {}", counted(model.fixed_batch, "example"));
  if (model.microbatches > 1) {
    model.notes.push_back(
        fmt::format("{}: a step takes {} such batches, one per microbatch, and the mean of their losses",
                    fixed, model.microbatches));
  } else if (stages.ranks > 1) {
    model.notes.push_back(fixed +
                          ": one microbatch, so that stages take turns (--microbatches N takes N such "
                          "batches in a step)");
  }
}

}  // namespace

void decideMicrobatches(const PlanRequest& request, const AskedStages& stages, ForwardModel& model) {
  const auto bound = model.dimensions.find(model.batch_dimension);
  if (bound == model.dimensions.end()) {
    model.microbatches = 1;  // unbound: prepareModel says which dimensions exist
    if (model.fixed_batch > 0) {
      takeFixedBatches(request, stages, model);
    } else if (model.batch_dimension.empty()) {
      refuseSeveralBatches(request);
    }
    return;
  }
  model.batch = bound->second;
  model.microbatches = request.microbatches > 0 ? request.microbatches
                                                : chooseMicrobatches(model.batch, request.partition, stages);
  if (model.microbatches > model.batch) {
    fail(ErrorCode::kConfiguration,
         "a batch of {} ({}) cannot be cut into {} microbatches; choose at most {}", model.batch,
         model.batch_dimension, model.microbatches, model.batch);
  }
  if (request.microbatches == 0 && request.partition.stages.kind != StagesRequest::Kind::kSearched)
    model.notes.push_back(fmt::format("{} microbatch{} chosen (--microbatches sets them)", model.microbatches,
                                      model.microbatches == 1 ? " was" : "es were"));
  if (request.uncut && request.fewest_rows > 1)
    model.notes.push_back(fmt::format("microbatches have at least {}, since they cannot have fewer: {}",
                                      counted(request.fewest_rows, "row"), *request.uncut));
  else if (request.uncut)
    model.notes.push_back(fmt::format("one microbatch has all {}, and stages take turns: {}",
                                      counted(model.batch, "row"), *request.uncut));
  if (request.accumulate > 1) accumulate(request.accumulate, model);
}

std::string severalBatchesNote(const ForwardModel& model, const std::vector<std::string>& outputs) {
  if (model.fixed_batch == 0 || model.microbatches == 1) return "";
  const std::optional<BatchCutError> meeting = examplesMeet(model, outputs);
  if (!meeting) return sumsOverBatch(model);
  const bool asks_for_all = model.asked_examples.value_or(0) > model.fixed_batch;
  if (model.fixed_batch == 1 || !meeting->isMeeting()) {
    if (model.fixed_batch > 1 && !asks_for_all) return "";
    return fmt::format(
        "a batch of {} does not show whether examples meet ({}): where they do, the loss of several such "
        "batches is not the mean of theirs; to be sure, {}",
        model.fixed_batch == 1 ? "one example" : "fixed size", meeting->cause(), dynamicBatchAdvice());
  }
  if (!asks_for_all)
    return fmt::format("examples meet in a batch of the file, not beyond it: {}", meeting->cause());
  const std::optional<BatchCutError> in_loss =
      outputs.empty() || !model.loss.valid() ? meeting : examplesMeet(model, {});
  if (!model.loss.valid() || !in_loss || !in_loss->isMeeting()) {
    return fmt::format("outputs are those of each batch of the file, in which examples meet: {}",
                       meeting->cause());
  }
  fail(ErrorCode::kBadModel,
       "--dim asks for the loss of {} examples, but the batch of the file has a fixed size of {}, and the "
       "mean of the losses of such batches is another where their examples meet: {}. Give --microbatches {} "
       "without --dim for that mean, or {}",
       *model.asked_examples, model.fixed_batch, meeting->cause(), *model.asked_examples / model.fixed_batch,
       dynamicBatchAdvice());
}

std::string dynamicBatchAdvice() {
  return "export the model with a dynamic batch axis (torch.export.Dim(\"batch\"); where the module asks "
         "len(x), PyTorch's exporter fixes its size without a word: x.shape[0] keeps it)";
}

std::string normalizedRowsNote(const PlanRequest& request, const ForwardModel& model) {
  if (model.fixed_batch > 0 && model.microbatches > 1 && trainingModes(model.graph).normalizations > 0)
    return fmt::format("batch normalizations in training mode see {} at a time, those of a batch of the file",
                       counted(model.fixed_batch, "row"));
  const bool chosen = request.microbatches == 0 && model.dimensions.contains(model.batch_dimension);
  const int64_t whole = model.batch / request.accumulate;
  const int64_t fewest = model.batch / model.microbatches;
  const int64_t most = (model.batch + model.microbatches - 1) / model.microbatches;
  if (!chosen || fewest >= whole || trainingModes(model.graph).normalizations == 0) return "";
  return fmt::format(
      "batch normalizations in training mode see {} at a time, those of a microbatch (--microbatches 1: all "
      "{})",
      fewest == most ? counted(most, "row") : fmt::format("{} or {} rows", fewest, most), whole);
}

}  // namespace pipeshard
