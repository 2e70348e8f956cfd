// Ranks as threads of the test, over the shared memory communicator: for tests of what runs above a
// communicator. (Those of communicators themselves fork: ranks.h.)
#pragma once

#include <functional>

#include "transport/collectives/communicator.h"

namespace pipeshard::testing {

// Runs body(communicator) once per rank, all at the same time. An exception in one ends the others' waits and
// fails the current test.
void runRankThreads(int size, const std::function<void(Communicator&)>& body);

}  // namespace pipeshard::testing
