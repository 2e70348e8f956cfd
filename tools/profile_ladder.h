// What `pipeshard profile` measures without a model: the operators, gradients and updates of small training
// steps (transformer blocks, a perceptron, convolutions) over a ladder of sizes. Interpolation does the rest
// (ir/cluster/profile.h).
#pragma once

#include "tools/profile_samples.h"

namespace pipeshard {

// `quick`: the smaller half of the ladder.
void addLadder(ProfileSamples& samples, bool quick);

}  // namespace pipeshard
