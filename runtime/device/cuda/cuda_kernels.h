// The kernels of the CUDA device, all families together.
#pragma once

#include "runtime/kernels/base/kernel.h"

namespace pipeshard {

const KernelRegistry& cudaKernels();

}  // namespace pipeshard
