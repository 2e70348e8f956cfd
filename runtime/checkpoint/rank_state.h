// What of a rank's buffers goes into checkpoints, and how it comes back.
#pragma once

#include <string>

#include "runtime/execute/executor.h"
#include "runtime/files/joined_tensors.h"

namespace pipeshard {

// The buffer's tensor in a checkpoint: "parameter/wte", "state/wte.first_moment",
// "forward_state/bn.running_mean"; "" for one that no checkpoint has. Names are those of the training step,
// which every plan of a model shares.
std::string stateTensorName(const Buffer& buffer);

// Gives every such buffer its box of the checkpoint's tensor; also where several ranks hold a copy, of which
// one has saved it. Error(kConfiguration) for a tensor that is missing, or of another type or shape.
void adoptState(Executor& executor, const JoinedTensors& tensors);

}  // namespace pipeshard
