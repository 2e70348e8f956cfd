// How many microbatches a step has, and how many rows of the batch.
#pragma once

#include <string>
#include <vector>

#include "partition/stages/asked_stages.h"
#include "planning/model/forward_model.h"
#include "planning/request/plan_request.h"

namespace pipeshard {

// Decides ForwardModel::batch and microbatches from the request, or from the schedule where it does not say,
// once dimensions and fixed_batch are known; notes what was chosen.
//
// A batch with a symbolic size is cut. A file whose batch is fixed is taken as it is: a step of
// --microbatches N has N such batches, and its loss is the mean of theirs. So are N batches of --accumulate
// N.
//
// Errors: kConfiguration where the batch has too few rows, or there is none and several are asked for.
void decideMicrobatches(const PlanRequest& request, const AskedStages& stages, ForwardModel& model);

// Of a model with its graph, where a step takes several batches of a file of fixed batch, and examples of one
// batch meet (examplesMeet) or its loss is no mean over examples (sumsOverBatch): what there is to say of it.
// "": nothing. `outputs`: what is wanted beside the loss; where they alone meet, they are those of each
// batch.
//
// Errors: kBadModel where --dim asks for the loss of more examples than the file has, which is then not the
// mean of the losses of its batches.
std::string severalBatchesNote(const ForwardModel& model, const std::vector<std::string>& outputs);

// How a model gets a batch of symbolic size: "export the model with ...", without a full stop.
std::string dynamicBatchAdvice();

// Where the number of microbatches was chosen, or each is a batch of a file, and batch normalisations take
// the statistics of one: how many rows they see, and the option for another number. "": there is nothing to
// say. To be called on a model with its graph.
std::string normalizedRowsNote(const PlanRequest& request, const ForwardModel& model);

}  // namespace pipeshard
