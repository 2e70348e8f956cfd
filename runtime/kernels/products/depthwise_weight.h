// The gradient of the weight of a depthwise convolution (one channel and one feature per group) of float32,
// for windows that oneDNN has no code for: it knows rows of three.
#pragma once

#include <cstddef>

#include "runtime/kernels/products/convolution.h"

namespace pipeshard::kernels {

bool isDepthwise(const Convolution& convolution);

// Of run's workspace, which is 64-byte aligned.
size_t depthwiseWeightBytes(const Convolution& convolution);

// weight[group, kernel..] := the sum over batch and outputs of dy * what the kernel's position sees of the
// image. The same bits for any number of threads.
void depthwiseWeightGrad(const Convolution& convolution, const float* dy, const float* image, float* weight,
                         void* workspace);

}  // namespace pipeshard::kernels
