// What of a rank's buffers goes into checkpoints, and how it comes back.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/execute/executor.h"
#include "runtime/files/joined_tensors.h"

namespace pipeshard {

// The buffer's tensor in a checkpoint: "parameter/wte", "state/wte.first_moment",
// "forward_state/bn.running_mean"; "" for one that no checkpoint has. Names are those of the training step,
// which every plan of a model shares.
std::string stateTensorName(const Buffer& buffer);
// Of one tensor, though one of the plans may have an axis of it as two (other --patterns).
bool haveOneShape(const Shape& shape, const Shape& other);

// Of the buffers that checkpoints have, those that the rank lists as results: of equal copies one rank does.
std::vector<BufferId> resultBuffers(const Program& program);

// The files of a checkpoint with anything of what the rank holds; ascending.
std::vector<int> filesFor(const Program& program, const Checkpoint& checkpoint);
// Those, for adoptState. They were verified: by the coordinator, or by the daemon of the one host that sees
// them (runtime/disks/). Errors: kMissingInput naming those that are on another host; as JoinedTensors::open.
JoinedTensors openStateOf(const Program& program, const Checkpoint& checkpoint);

// Gives every such buffer its box of the checkpoint's tensor; also where several ranks hold a copy, of which
// one has saved it. Error(kConfiguration) for a tensor that is missing, or of another type or shape: what a
// job's checkpoint lacks is said before, with the reason (resume_check.h).
void adoptState(Executor& executor, const JoinedTensors& tensors);

}  // namespace pipeshard
