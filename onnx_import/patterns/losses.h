// Log-softmax, then the negative log-likelihood: the loss of scores and labels.
#pragma once

#include <optional>
#include <vector>

#include "onnx_import/patterns/match.h"

namespace pipeshard {

// In front of a NegativeLogLikelihoodLoss. `missed` as in matchActivation.
std::optional<Match> matchCrossEntropy(const PatternGraph& patterns, NodeId node,
                                       std::vector<NearMiss>& missed);

}  // namespace pipeshard
