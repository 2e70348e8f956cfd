// One execution of one kernel of the CUDA module, on the stand-in of NVIDIA's libraries (tests/standin),
// which reports what is written outside.
#pragma once

#include <optional>
#include <utility>

#include "runtime/device/device.h"
#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {

Device& cuda();

// `shared`: an output in the memory of an input (input, output). `total`: content of output 0 that the kernel
// adds to. Throws what the kernel records; fails the test when an input was changed.
std::vector<Tensor> runOnCuda(const KernelCall& call, Kernel& kernel,
                              std::optional<std::pair<size_t, size_t>> shared = {},
                              const Tensor* total = nullptr);

}  // namespace pipeshard::testing
