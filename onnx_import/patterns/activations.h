// Activations that are a polynomial of x and of one function of x: Gelu by erf, Gelu by tanh, Swish.
#pragma once

#include <optional>
#include <vector>

#include "onnx_import/patterns/match.h"

namespace pipeshard {

// Around one node: the activation whose erf, tanh or sigmoid it is, or which it is (ONNX's own Gelu). Where
// the beginning is that of a pattern and the rest is not, `missed` gets the reason.
std::optional<Match> matchActivation(const PatternGraph& patterns, NodeId node,
                                     std::vector<NearMiss>& missed);

}  // namespace pipeshard
