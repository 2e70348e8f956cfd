// A kernel's collective over a communicator.
#pragma once

#include "runtime/kernels/base/kernel.h"
#include "transport/collectives/communicator.h"

namespace pipeshard {

// The group has as many members as the call counts on. Errors: those of Communicator.
void runCollective(Communicator& communicator, const Group& group, const CollectiveCall& call);

}  // namespace pipeshard
