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
//   - Where the schedule has a stage's backward passes whole, and no gradient goes from it to another one,
//     they are one piece, kBackward.
//
// `stages`: by node (node_stages.h); `live`: as liveNodes; `split`: by stage, the schedule has its backward
// passes in halves. Linear in the edges of the graph.
std::vector<Phase> passPhases(const TrainingGraph& training, const UseDef& uses,
                              const std::vector<StageId>& stages, const std::vector<bool>& live,
                              const IdVector<StageId, bool>& split);

}  // namespace pipeshard
