// A launched grid on one thread: block after block, the threads of a block as fibers that take turns at
// barriers and shuffles. Internal to the stand-in; under its lock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tests/standin/cuda_on_host.h"

namespace standin {

void runGrid(const KernelEntry& entry, void* arguments, dim3 grid, dim3 block);

// The thread of the kernel that runs now; nullptr: none.
const Thread* currentThread();
// Barriers that its block has passed.
uint32_t currentEpoch();
// Of the block among all that have run: what its threads share is told apart by it.
uint32_t currentBlock();
// No other thread writes it: stacks, arguments, what a thread is.
bool isThreadsOwn(const void* address);

}  // namespace standin
