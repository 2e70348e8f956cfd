// From a training graph to a Plan: decides layers, stages, their devices and the schedule, as options ask.
#pragma once

#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"
#include "partition/stages/partition_options.h"

namespace pipeshard {

// Clusters the forward nodes into layers by cumulative FLOPs, gives the layers to stages, stages to devices,
// and fills `plan`'s layers, stages, schedule and number of microbatches (its other fields are the caller's);
// docs/stages.md tells what the options mean. Without stage_devices or a stage file K stages get devices/K
// devices each, rounded down, and no more than a microbatch has rows; a note says why devices stay unused. A
// stage cuts each microbatch over its devices unless a stage file says otherwise. Errors: kConfiguration
// (more stages than devices or than forward nodes, an unknown boundary with near matches, boundaries out of
// order, a stage file that is wrong: the message names the field, what was found and what is allowed), kUsage
// (a malformed option, options that exclude each other), kMissingInput (no such stage file).
void partitionTraining(const TrainingGraph& training, const PartitionOptions& options, Plan& plan);

}  // namespace pipeshard
