// `plan --copy-weights`: every rank's parts of the weights, as safetensors in the plan directory, so that a
// rank runs where the model is not.
#pragma once

#include <string>

#include "ir/program/program_set.h"
#include "planning/request/progress.h"

namespace pipeshard {

// Writes weights/RANK.safetensors (copiedWeightsFile) of every rank into `folder`, and makes the kinds'
// programs read from there: a buffer whose source is in a file gets own_copy, its box alone in the file's
// type, by the tensor's name in the model. What is drawn, and what the program itself holds, stays as it is.
// Holds one rank's weights at a time. `progress`: told between ranks; what it throws ends the work. Errors:
// kMissingInput (a weight's file), kDiskFull (before anything is written, where the sizes tell).
void copyWeights(ProgramSet& set, const std::string& folder, const ProgressCallback& progress);

// The bytes of all copies in a plan directory; 0 if there are none.
uint64_t copiedWeightBytes(const std::string& plan_directory);

}  // namespace pipeshard
