#include "runtime/kernels/products/matmul.h"

namespace pipeshard::kernels {

template <typename T>
void multiply(DeviceQueue*, const GemmShape& shape, int64_t batch, double alpha, const T* a,
              const int64_t* a_offsets, const T* b, const int64_t* b_offsets, double beta, T* c) {
  batchedGemm(shape, batch, alpha, a, a_offsets, b, b_offsets, beta, c);
}

template <typename T>
void multiplyAndAdd(DeviceQueue*, const GemmShape& shape, double alpha, const T* a, const T* b, T* c) {
  addGemm(shape, alpha, a, b, c);
}

std::shared_ptr<const Bfloat16Product> ownBfloat16Product(const GemmShape& shape, int64_t batch,
                                                          double alpha) {
  return makeBfloat16Product(shape, batch, alpha);
}

template void multiply(DeviceQueue*, const GemmShape&, int64_t, double, const float*, const int64_t*,
                       const float*, const int64_t*, double, float*);
template void multiplyAndAdd(DeviceQueue*, const GemmShape&, double, const float*, const float*, float*);
template void multiply(DeviceQueue*, const GemmShape&, int64_t, double, const double*, const int64_t*,
                       const double*, const int64_t*, double, double*);
template void multiplyAndAdd(DeviceQueue*, const GemmShape&, double, const double*, const double*, double*);
template void multiply(DeviceQueue*, const GemmShape&, int64_t, double, const int32_t*, const int64_t*,
                       const int32_t*, const int64_t*, double, int32_t*);
template void multiplyAndAdd(DeviceQueue*, const GemmShape&, double, const int32_t*, const int32_t*,
                             int32_t*);
template void multiply(DeviceQueue*, const GemmShape&, int64_t, double, const int64_t*, const int64_t*,
                       const int64_t*, const int64_t*, double, int64_t*);
template void multiplyAndAdd(DeviceQueue*, const GemmShape&, double, const int64_t*, const int64_t*,
                             int64_t*);

}  // namespace pipeshard::kernels
