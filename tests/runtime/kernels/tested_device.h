// What kernel calls run on: tested_device_cpu.cc is the CPU, tested_device_cuda.cc the CUDA module.
#pragma once

#include <optional>
#include <utility>

#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {

const KernelRegistry& testedKernels();

// `shared`: an output in the memory of an input (input, output). `total`: content of output 0 that the kernel
// adds to. Fails the test when the kernel writes outside of its outputs.
std::vector<Tensor> execute(const KernelCall& call, Kernel& kernel,
                            std::optional<std::pair<size_t, size_t>> shared = {},
                            const Tensor* total = nullptr);

// The device must have a kernel for the types and attributes of this call.
bool mustRun(const KernelCall& call);

}  // namespace pipeshard::testing
