// Which stage runs each node of a training graph, given a plan's layers and stages; and which stages read,
// and which one owns, each parameter.
#pragma once

#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"

namespace pipeshard {

// The stage of every node of the training graph, by node index, as the plan decides: forward nodes by layer,
// but a copy of a weight (ir/graph/weight_copies.h) with its first forward reader;
// prologue nodes with each of their readers (they are cheap and replicated: the list holds the first);
// backward nodes with the forward node that they are of (TrainingGraph); an update with the owner of its
// parameter, the first stage that reads it. Error(kConfiguration) when the plan is of another model.
std::vector<StageId> nodeStages(const TrainingGraph& training, const Plan& plan);

// By node of a pass: its layer in the plan, one of its stage's. Forward nodes never read what a later layer
// of their stage makes, and backward nodes never what the backward nodes of an earlier layer make: passes may
// run layer by layer. Other nodes: the first layer.
std::vector<LayerId> nodeLayers(const TrainingGraph& training, const Plan& plan,
                                const std::vector<StageId>& node_stages);

// By parameter: the stages whose forward or backward nodes read it, ascending, without repetitions.
std::vector<std::vector<StageId>> parameterReaders(const TrainingGraph& training,
                                                   const std::vector<StageId>& node_stages);

// By parameter: the first stage that reads it; for one that is trained but not read, the stage of its first
// gradient part; invalid for one that nothing needs.
std::vector<StageId> parameterOwners(const TrainingGraph& training, const std::vector<StageId>& node_stages);

}  // namespace pipeshard
