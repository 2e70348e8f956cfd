// RMSNorm in pieces: y = x / sqrt(mean(x^2) + epsilon) w, means over the last axis.
#pragma once

#include <optional>
#include <vector>

#include "onnx_import/patterns/match.h"

namespace pipeshard {

// Around the ReduceMean of the squares. `missed` as in matchActivation.
std::optional<Match> matchRmsNormalization(const PatternGraph& patterns, NodeId node,
                                           std::vector<NearMiss>& missed);

}  // namespace pipeshard
