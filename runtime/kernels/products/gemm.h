// Matrix products of dense row-major matrices: float32 and bfloat16 by oneDNN, float64 by Eigen, integers by
// plain loops. The output is cut into tiles by its size; every tile is computed by one thread over the whole
// of k, so that bits do not depend on threads.
#pragma once

#include <cstdint>
#include <memory>

namespace pipeshard::kernels {

struct GemmShape {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// C = alpha * op(A) * op(B) + beta * C for `batch` independent products; matrix i of A starts at a +
// a_offsets[i] (elements), likewise b; C is dense, matrix after matrix. beta == 0: C need not be initialised.
// T: float, double, int32_t, int64_t (integers wrap; alpha and beta are rounded).
template <typename T>
void batchedGemm(const GemmShape& shape, int64_t batch, double alpha, const T* a, const int64_t* a_offsets,
                 const T* b, const int64_t* b_offsets, double beta, T* c);

// C = C + alpha * op(A) * op(B) of one product, to the bits of a product that is added afterwards (beta = 1
// adds blocks of it).
template <typename T>
void addGemm(const GemmShape& shape, double alpha, const T* a, const T* b, T* c);

// Products of bfloat16 matrices that a device multiplies itself, with sums in float32.
class Bfloat16Product {
 public:
  // What becomes of the sums, which are multiplied by alpha first.
  struct Result {
    float* sums = nullptr;        // they are written here, or
    bool add = false;             // added, or
    uint16_t* rounded = nullptr;  // with `bias`, one of each column, or none, rounded to bfloat16
    const uint16_t* bias = nullptr;
  };
  virtual ~Bfloat16Product() = default;
  // Matrix i of A starts at a + a_offsets[i] (elements), likewise b. Safe from several threads at once.
  virtual void run(const uint16_t* a, const int64_t* a_offsets, const uint16_t* b, const int64_t* b_offsets,
                   const Result& result) const = 0;
};

// nullptr where the processor has no such instructions (AVX512-BF16, AMX), or where a product is so small
// that it is faster in float32. Bits depend on sizes alone.
std::shared_ptr<const Bfloat16Product> makeBfloat16Product(const GemmShape& shape, int64_t batch,
                                                           double alpha);

// C = op(A) * op(B) + beta * C of one product, in one tile on the calling thread (call it inside a parallel
// loop). lda, ldb, ldc: elements between rows of A, B, C as stored. T: float, double. k > 0.
template <typename T>
void gemmOnThisThread(const GemmShape& shape, const T* a, int64_t lda, const T* b, int64_t ldb, double beta,
                      T* c, int64_t ldc);

}  // namespace pipeshard::kernels
