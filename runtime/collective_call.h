// A kernel's collective over a communicator.
#pragma once

#include "runtime/kernels/kernel.h"
#include "transport/communicator.h"

namespace pipeshard {

// Error(kConfiguration) when the call counts on another number of members than the group has; else those of Communicator.
void runCollective(Communicator& communicator, const Group& group, const CollectiveCall& call);

}  // namespace pipeshard
