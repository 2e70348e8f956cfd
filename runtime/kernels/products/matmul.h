// Products of dense row-major matrices, on any device.
#pragma once

#include <cstdint>

#include "runtime/kernels/products/gemm.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// As batchedGemm (gemm.h); the offsets are the host's.
template <typename T>
void multiply(DeviceQueue* queue, const GemmShape& shape, int64_t batch, double alpha, const T* a,
              const int64_t* a_offsets, const T* b, const int64_t* b_offsets, double beta, T* c);
// As addGemm; on other devices than the CPU to other bits than a product and a sum.
template <typename T>
void multiplyAndAdd(DeviceQueue* queue, const GemmShape& shape, double alpha, const T* a, const T* b, T* c);

// As makeBfloat16Product (gemm.h); nullptr where the device has no such products.
std::shared_ptr<const Bfloat16Product> ownBfloat16Product(const GemmShape& shape, int64_t batch,
                                                          double alpha);

}  // namespace pipeshard::kernels
