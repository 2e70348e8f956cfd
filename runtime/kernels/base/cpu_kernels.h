// The kernels of the CPU, all families together.
#pragma once

#include "runtime/kernels/base/kernel.h"

namespace pipeshard {

// All CPU kernels. Threads: OpenMP's number of this process.
const KernelRegistry& cpuKernels();

}  // namespace pipeshard
