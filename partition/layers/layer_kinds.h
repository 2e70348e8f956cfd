// Which layers are equal. Internal to layer_clustering.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/training_graph.h"
#include "partition/layers/layers.h"

namespace pipeshard {

// By layer a number, counted up from 0 in order of first appearance; `ends` are positions in `order`. Layers
// of one number have, position by position, nodes of equal structure (sharding/stage/repeats.h) that read the
// same of what the layer makes, and what comes from outside in the same way: parameters (trained or not, read
// elsewhere or not), constants, inputs, values of earlier layers. The same outputs are read behind the layer,
// and equal backward nodes follow.
IdVector<LayerId, int> layerKinds(const TrainingGraph& training, const std::vector<NodeId>& order,
                                  const LayerEnds& ends);

}  // namespace pipeshard
