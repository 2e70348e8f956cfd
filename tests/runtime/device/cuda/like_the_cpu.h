// A kernel of the CUDA module against the CPU's: equal integers, float32 within 1e-5 and float64 within 1e-12
// of the norm.
#pragma once

#include <vector>

#include "tests/runtime/device/cuda/cuda_call.h"

namespace pipeshard::testing {

std::vector<Tensor> runOnDevice(const KernelCall& call);
void expectLikeTheCpu(const KernelCall& call);

}  // namespace pipeshard::testing
