// A kernel's collective over a communicator.
#pragma once

#include "runtime/kernels/kernel.h"
#include "transport/communicator.h"

namespace pipeshard {

// The group has as many members as the call counts on. Errors: those of Communicator.
void runCollective(Communicator& communicator, const Group& group, const CollectiveCall& call);

}  // namespace pipeshard
