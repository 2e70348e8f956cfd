// Normalisations in pieces.
//   RMSNorm: x / sqrt(mean(x^2) + epsilon) w, the mean over the last axis
//   LayerNorm: (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) w + b, means over the last axes
#pragma once

#include <optional>
#include <vector>

#include "onnx_import/patterns/match.h"

namespace pipeshard {

// Around the (first) ReduceMean. `missed` as in matchActivation.
std::optional<Match> matchNormalization(const PatternGraph& patterns, NodeId node,
                                        std::vector<NearMiss>& missed);

}  // namespace pipeshard
