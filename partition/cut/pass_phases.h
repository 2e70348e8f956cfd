// In which pass the nodes of a training graph run, once it is known which stage runs them. Internal to
// partition/.
#pragma once

#include <vector>

#include "ir/base/ids.h"
#include "ir/graph/graph.h"
#include "ir/graph/training_graph.h"

namespace pipeshard {

// By node: the loss, an output, a state or a gradient needs it.
std::vector<bool> liveNodes(const TrainingGraph& training, const UseDef& uses);

// By node, the phase of its piece: TrainingGraph::node_phase but for two things.
//
//   - A schedule orders the input halves of a microbatch's backward passes from stage to stage, but not their
//     weight halves: what another stage, or an input half, waits for is made in the input half.
//   - Where the schedule has backward passes whole, a stage from which no gradient goes to another one has
//     them as one piece, kBackward.
//
// `stages`: by node (node_stages.h); `live`: as liveNodes. Linear in the edges of the graph.
std::vector<Phase> passPhases(const TrainingGraph& training, const UseDef& uses,
                              const std::vector<StageId>& stages, const std::vector<bool>& live,
                              bool splits_backward);

}  // namespace pipeshard
