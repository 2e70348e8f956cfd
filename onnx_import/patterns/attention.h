// Scaled dot-product attention: softmax(scale Q K^T, masked, with a bias) V.
#pragma once

#include <optional>
#include <vector>

#include "onnx_import/patterns/match.h"

namespace pipeshard {

// Around the Softmax. `missed` as in matchActivation.
std::optional<Match> matchAttention(const PatternGraph& patterns, NodeId node, std::vector<NearMiss>& missed);

}  // namespace pipeshard
