// What a thread does between ncclGroupStart and ncclGroupEnd: one launch for each communicator.
#pragma once

#include <nccl.h>

#include <memory>
#include <vector>

#include "tests/standin/nccl/communicator.h"

namespace standin::nccl {

struct Planned {
  std::shared_ptr<Communicator> communicator;
  Piece piece;
  Stream* stream = nullptr;
};

bool isInGroup();
// The group that is open makes communicators.
bool groupMakes();
void startGroup();
void addCall(Planned call);
void addMade(const std::shared_ptr<Communicator>& communicator);
// The group will do nothing, and end with this.
void failGroup(ncclResult_t code);
// The outermost one launches, or waits. ncclInProgress: a communicator that does not block meets ranks for
// the first time; it launches when its state is asked for, and is not behind what was recorded before that.
ncclResult_t endGroup();

}  // namespace standin::nccl
