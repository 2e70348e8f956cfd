#include <cublasLt.h>

#include <type_traits>

#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/products/matmul.h"

namespace pipeshard::kernels {

// What cuBLASLt has no product for: integers, which wrap around, and sums of nothing (k = 0). One thread for
// each element.
template <typename T>
__global__ void productKernel(GemmShape shape, T alpha, const T* a, const T* b, T beta, T* c) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < shape.m * shape.n; i += step) {
    const int64_t row = i / shape.n;
    const int64_t column = i % shape.n;
    T sum = 0;
    for (int64_t l = 0; l < shape.k; ++l) {
      const T left = a[shape.transpose_a ? l * shape.m + row : row * shape.k + l];
      const T right = b[shape.transpose_b ? column * shape.k + l : l * shape.n + column];
      sum += left * right;
    }
    c[i] = beta == T(0) ? alpha * sum : alpha * sum + beta * c[i];
  }
}

inline void checkCublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) failCall(call, cublasLtGetStatusString(status));
}

// Lives as long as the process: nothing of CUDA may be called when that ends.
inline cublasLtHandle_t libraryHandle() {
  static const cublasLtHandle_t made = [] {
    cublasLtHandle_t handle = nullptr;
    checkCublas(cublasLtCreate(&handle), "cublasLtCreate");
    return handle;
  }();
  return made;
}

struct LtLayout {
  LtLayout(cudaDataType_t type, int64_t rows, int64_t columns) {
    checkCublas(cublasLtMatrixLayoutCreate(&layout, type, rows, columns, rows), "cublasLtMatrixLayoutCreate");
  }
  ~LtLayout() { cublasLtMatrixLayoutDestroy(layout); }
  cublasLtMatrixLayout_t layout = nullptr;
};

struct LtProduct {
  LtProduct(cublasComputeType_t compute, cudaDataType_t scale, bool transpose_a, bool transpose_b) {
    checkCublas(cublasLtMatmulDescCreate(&product, compute, scale), "cublasLtMatmulDescCreate");
    set(CUBLASLT_MATMUL_DESC_TRANSA, transpose_a);
    set(CUBLASLT_MATMUL_DESC_TRANSB, transpose_b);
  }
  ~LtProduct() { cublasLtMatmulDescDestroy(product); }
  void set(cublasLtMatmulDescAttributes_t which, bool transpose) {
    const cublasOperation_t operation = transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    checkCublas(cublasLtMatmulDescSetAttribute(product, which, &operation, sizeof operation),
                "cublasLtMatmulDescSetAttribute");
  }
  cublasLtMatmulDesc_t product = nullptr;
};

// The largest power of two, 256 at most, that divides all addresses whose bits are in `addresses`.
inline uint32_t commonAlignment(uintptr_t addresses) {
  const auto bits = static_cast<uint32_t>(addresses | 256);
  return bits & (~bits + 1);
}

// What the library may count on; by itself it counts on multiples of 256.
struct LtPreference {
  LtPreference(uintptr_t a, uintptr_t b, uintptr_t c) {
    checkCublas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, commonAlignment(a));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, commonAlignment(b));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, commonAlignment(c));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, commonAlignment(c));
  }
  ~LtPreference() { cublasLtMatmulPreferenceDestroy(preference); }
  void set(cublasLtMatmulPreferenceAttributes_t which, uint32_t bytes) {
    checkCublas(cublasLtMatmulPreferenceSetAttribute(preference, which, &bytes, sizeof bytes),
                "cublasLtMatmulPreferenceSetAttribute");
  }
  cublasLtMatmulPreference_t preference = nullptr;
};

// cuBLAS sees columns where we see rows: C' = B' A'. float32 is float32, without TF32; no workspace.
template <typename T>
void multiplyByLibrary(cudaStream_t stream, const GemmShape& shape, int64_t batch, double alpha, const T* a,
                       const int64_t* a_offsets, const T* b, const int64_t* b_offsets, double beta, T* c) {
  const cublasLtHandle_t library = libraryHandle();
  constexpr bool kSingle = std::is_same_v<T, float>;
  constexpr cudaDataType_t kType = kSingle ? CUDA_R_32F : CUDA_R_64F;
  const LtProduct product(kSingle ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_64F, kType, shape.transpose_b,
                          shape.transpose_a);
  const LtLayout left(kType, shape.transpose_b ? shape.k : shape.n, shape.transpose_b ? shape.n : shape.k);
  const LtLayout right(kType, shape.transpose_a ? shape.m : shape.k, shape.transpose_a ? shape.k : shape.m);
  const LtLayout result(kType, shape.n, shape.m);
  const T scale = static_cast<T>(alpha);
  const T keep = static_cast<T>(beta);
  uintptr_t a_bits = 0, b_bits = 0, c_bits = 0;
  for (int64_t i = 0; i < batch; ++i) {
    a_bits |= reinterpret_cast<uintptr_t>(a + a_offsets[i]);
    b_bits |= reinterpret_cast<uintptr_t>(b + b_offsets[i]);
    c_bits |= reinterpret_cast<uintptr_t>(c + i * shape.m * shape.n);
  }
  const LtPreference preference(b_bits, a_bits, c_bits);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  checkCublas(
      cublasLtMatmulAlgoGetHeuristic(library, product.product, left.layout, right.layout, result.layout,
                                     result.layout, preference.preference, 1, &found, &count),
      "cublasLtMatmulAlgoGetHeuristic");
  if (count == 0) failCall("cublasLtMatmulAlgoGetHeuristic", "there is no algorithm for this product");
  for (int64_t i = 0; i < batch; ++i) {
    T* out = c + i * shape.m * shape.n;
    checkCublas(cublasLtMatmul(library, product.product, &scale, b + b_offsets[i], left.layout,
                               a + a_offsets[i], right.layout, &keep, out, result.layout, out, result.layout,
                               &found.algo, nullptr, 0, stream),
                "cublasLtMatmul");
  }
}

template <typename T>
void multiply(DeviceQueue* queue, const GemmShape& shape, int64_t batch, double alpha, const T* a,
              const int64_t* a_offsets, const T* b, const int64_t* b_offsets, double beta, T* c) {
  if (batch == 0 || shape.m == 0 || shape.n == 0) return;
  const cudaStream_t stream = streamOf(queue);
  if constexpr (std::is_floating_point_v<T>) {
    if (shape.k > 0)
      return multiplyByLibrary(stream, shape, batch, alpha, a, a_offsets, b, b_offsets, beta, c);
  }
  for (int64_t i = 0; i < batch; ++i) {
    launch<productKernel<T>>(blocksFor(shape.m * shape.n), dim3(kBlockThreads), stream, shape,
                             static_cast<T>(alpha), a + a_offsets[i], b + b_offsets[i], static_cast<T>(beta),
                             c + i * shape.m * shape.n);
  }
}

template <typename T>
void multiplyAndAdd(DeviceQueue* queue, const GemmShape& shape, double alpha, const T* a, const T* b, T* c) {
  constexpr int64_t kNoOffset = 0;
  multiply(queue, shape, 1, alpha, a, &kNoOffset, b, &kNoOffset, 1, c);
}

std::shared_ptr<const Bfloat16Product> ownBfloat16Product(const GemmShape&, int64_t, double) {
  return nullptr;
}

#define PIPESHARD_INSTANCE(T)                                                                       \
  template void multiply(DeviceQueue*, const GemmShape&, int64_t, double, const T*, const int64_t*, \
                         const T*, const int64_t*, double, T*);                                     \
  template void multiplyAndAdd(DeviceQueue*, const GemmShape&, double, const T*, const T*, T*);
PIPESHARD_INSTANCE(float)
PIPESHARD_INSTANCE(double)
PIPESHARD_INSTANCE(int32_t)
PIPESHARD_INSTANCE(int64_t)
#undef PIPESHARD_INSTANCE

}  // namespace pipeshard::kernels
