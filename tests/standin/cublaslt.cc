// libcublasLt, the part that the module calls: products by plain loops in double, as operations of the
// stand-in's streams, with every element checked.
#include <cublasLt.h>

#include <cstring>
#include <mutex>
#include <string>

#include "tests/standin/heap.h"
#include "tests/standin/lines.h"

#define API extern "C" __attribute__((visibility("default")))

namespace standin {
namespace {

struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t leading;
};

struct Product {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
};

// What a product's addresses are multiples of, in bytes: A, B, C, D.
struct Alignments {
  uint32_t bytes[4] = {256, 256, 256, 256};  // the library's own, where nobody says another
};

struct Call {
  Product product;
  double alpha = 0, beta = 0;
  Layout a{}, b{}, c{};
  const void *a_at = nullptr, *b_at = nullptr;
  void* c_at = nullptr;
  int64_t inner() const { return product.a == CUBLAS_OP_N ? a.columns : a.rows; }
};

cublasStatus_t refuse(const std::string& why) {
  const std::lock_guard held(lock());
  report("cublasLtMatmul: " + why);
  return CUBLAS_STATUS_INVALID_VALUE;
}

// All elements of a matrix, once: the operation has no threads whose accesses could differ.
template <typename T>
void accessAll(const void* matrix, const Layout& layout, bool write) {
  for (uint64_t column = 0; column < layout.columns; ++column)
    access(static_cast<const T*>(matrix) + column * layout.leading, layout.rows * sizeof(T), write);
}

// Of the element in column-major order.
template <typename T>
double element(const void* matrix, const Layout& layout, bool transposed, int64_t row, int64_t column) {
  const int64_t at = transposed ? row * layout.leading + column : column * layout.leading + row;
  return static_cast<double>(static_cast<const T*>(matrix)[at]);
}

template <typename T>
void compute(const Call& call) {
  accessAll<T>(call.a_at, call.a, false);
  accessAll<T>(call.b_at, call.b, false);
  if (call.beta != 0) accessAll<T>(call.c_at, call.c, false);
  accessAll<T>(call.c_at, call.c, true);
  const bool a_swapped = call.product.a != CUBLAS_OP_N, b_swapped = call.product.b != CUBLAS_OP_N;
  for (uint64_t column = 0; column < call.c.columns; ++column) {
    for (uint64_t row = 0; row < call.c.rows; ++row) {
      double sum = 0;
      for (int64_t k = 0; k < call.inner(); ++k)
        sum += element<T>(call.a_at, call.a, a_swapped, row, k) *
               element<T>(call.b_at, call.b, b_swapped, k, column);
      T* place = static_cast<T*>(call.c_at) + column * call.c.leading + row;
      const double before = call.beta == 0 ? 0 : call.beta * static_cast<double>(*place);
      *place = static_cast<T>(call.alpha * sum + before);
    }
  }
}

bool fits(const Call& call) {
  const bool a_swapped = call.product.a != CUBLAS_OP_N, b_swapped = call.product.b != CUBLAS_OP_N;
  return (a_swapped ? call.a.columns : call.a.rows) == call.c.rows &&
         (b_swapped ? call.b.rows : call.b.columns) == call.c.columns &&
         (b_swapped ? call.b.columns : call.b.rows) == static_cast<uint64_t>(call.inner()) &&
         call.a.leading >= static_cast<int64_t>(call.a.rows) &&
         call.b.leading >= static_cast<int64_t>(call.b.rows) &&
         call.c.leading >= static_cast<int64_t>(call.c.rows);
}

double scalar(const void* place, cudaDataType_t type) {
  return type == CUDA_R_32F ? *static_cast<const float*>(place) : *static_cast<const double*>(place);
}

}  // namespace
}  // namespace standin

using namespace standin;

// One for all, and no cublasLtDestroy: the module's lives as long as the process.
API cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int one = 0;
  *handle = reinterpret_cast<cublasLtHandle_t>(&one);
  return CUBLAS_STATUS_SUCCESS;
}
API const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "a status that the stand-in reports";
}
API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                              uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatrixLayoutDestroy(const cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<const Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t compute,
                                            cudaDataType_t scale) {
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulDescDestroy(const cublasLtMatmulDesc_t product) {
  delete reinterpret_cast<const Product*>(product);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                                  cublasLtMatmulDescAttributes_t which, const void* value,
                                                  size_t bytes) {
  auto* of = reinterpret_cast<Product*>(product);
  if (bytes != sizeof(cublasOperation_t))
    return refuse("an attribute of " + std::to_string(bytes) + " bytes");
  if (which != CUBLASLT_MATMUL_DESC_TRANSA && which != CUBLASLT_MATMUL_DESC_TRANSB)
    return refuse("attribute " + std::to_string(which) + " is not known here");
  std::memcpy(which == CUBLASLT_MATMUL_DESC_TRANSA ? &of->a : &of->b, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Alignments());
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Alignments*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                        cublasLtMatmulPreferenceAttributes_t which,
                                                        const void* value, size_t bytes) {
  const int matrix = which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
  if (matrix < 0 || matrix > 3 || bytes != sizeof(uint32_t))
    return refuse("preference " + std::to_string(which) + " is not known here");
  std::memcpy(&reinterpret_cast<Alignments*>(preference)->bytes[matrix], value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
// One way there is; it keeps what addresses it may count on.
API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                                  cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                  cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                  cublasLtMatmulPreference_t preference, int wanted,
                                                  cublasLtMatmulHeuristicResult_t* results, int* count) {
  if (wanted < 1) return refuse("no way is asked for");
  *results = {};
  std::memcpy(results->algo.data, reinterpret_cast<Alignments*>(preference)->bytes, sizeof(Alignments));
  results->state = CUBLAS_STATUS_SUCCESS;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                                  const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                  cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                  cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                                  const cublasLtMatmulAlgo_t* algorithm, void*, size_t, cudaStream_t stream) {
  Call call;
  call.product = *reinterpret_cast<const Product*>(product);
  call.a = *reinterpret_cast<const Layout*>(a_layout);
  call.b = *reinterpret_cast<const Layout*>(b_layout);
  call.c = *reinterpret_cast<const Layout*>(d_layout);
  call.alpha = scalar(alpha, call.product.scale);
  call.beta = scalar(beta, call.product.scale);
  call.a_at = a;
  call.b_at = b;
  call.c_at = d;
  if (c != d || c_layout != d_layout) return refuse("C and D are not the same");
  if (!fits(call)) return refuse("the matrices do not fit each other");
  Alignments counted_on;
  if (algorithm != nullptr) std::memcpy(counted_on.bytes, algorithm->data, sizeof counted_on.bytes);
  const void* const places[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(places[i]) % counted_on.bytes[i] != 0)
      return refuse(std::string("matrix ") + "ABCD"[i] + " is at no multiple of " +
                    std::to_string(counted_on.bytes[i]) + " bytes, which the algorithm counts on");
  }
  const bool single = call.c.type == CUDA_R_32F;
  const bool same =
      call.a.type == call.c.type && call.b.type == call.c.type && call.product.scale == call.c.type;
  const bool plain = call.product.compute == (single ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_64F);
  if (!same || !plain) return refuse("other types than float32 and float64, or another precision");
  auto* on = reinterpret_cast<Stream*>(stream);
  if (!isStream(on)) return refuse("the default stream, or none");
  enqueue(*on, "cublasLtMatmul", [call, single] { single ? compute<float>(call) : compute<double>(call); });
  return CUBLAS_STATUS_SUCCESS;
}
