// The model at the shorter lengths of sequences that a plan has programs for, beside the longest, which it is
// planned for.
#pragma once

#include <cstdint>

#include "planning/model/forward_model.h"

namespace pipeshard {

// Takes the dimension and the shorter lengths from the request. Error(kUsage) where the model has no such
// dimension.
void takeLengths(const PlanRequest& request, ForwardModel& model);

// Whether the plan can have programs for all of ForwardModel::shorter_lengths. Errors: kUsage (the dimension
// is the batch, or none of the model's inputs has it; `lengths` that do not descend from the longest on),
// kConfiguration (as below).
void requireShorterSequences(const ForwardModel& model);

// The model with ForwardModel::length_dimension = `length`, which is less than in `model`; it keeps what
// `model` refers to. Error(kConfiguration) where its graph has other operators, so that layers, stages and
// shardings of the longest sequences say nothing about it.
ForwardModel ofShorterSequences(const ForwardModel& model, int64_t length);

}  // namespace pipeshard
