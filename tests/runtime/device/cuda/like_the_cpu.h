// A kernel of the CUDA module against the CPU's: equal integers, float32 within 1e-5 and float64 within 1e-12
// of the norm; bfloat16 within 1e-3 and float16 within 1.25e-4, that is a few elements apart by their last
// bit.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/runtime/device/cuda/cuda_call.h"

namespace pipeshard::testing {

std::vector<Tensor> runOnDevice(const KernelCall& call);
void expectLikeTheCpu(const KernelCall& call);
// "CODE: MESSAGE" of the Error that `body` ends with; empty where there is none.
std::string messageOf(const std::function<void()>& body);

}  // namespace pipeshard::testing
