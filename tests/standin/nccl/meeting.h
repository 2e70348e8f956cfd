// The calls of a resident kernel meet those of the other ranks.
#pragma once

#include "tests/standin/nccl/communicator.h"

namespace standin::nccl {

// Goes on as far as the others are; never blocks. True: all have met, and their results are there. Calls that
// do not match are reported, and the communicator fails.
bool meetAll(Launch& launch);

}  // namespace standin::nccl
