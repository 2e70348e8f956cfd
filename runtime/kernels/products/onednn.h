// Matrix products of oneDNN (2.x). Its errors come out as pipeshard::Error (kInternal).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pipeshard::kernels {

// C = alpha * op(A) * op(B) + beta * C in float32, row-major; op(A) is [m,k], op(B) is [k,n]. lda, ldb, ldc:
// elements between rows of A, B, C as stored. Runs on the calling thread when called inside an OpenMP
// parallel region.
void onednnGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// C = op(A) * op(B) of dense bfloat16 matrices, C in float32, for one size.
class OnednnBfloat16Gemm {
 public:
  // nullptr when oneDNN has no code for this processor that multiplies bfloat16 itself.
  static std::shared_ptr<const OnednnBfloat16Gemm> create(bool transpose_a, bool transpose_b, int64_t m,
                                                          int64_t n, int64_t k);
  size_t scratchBytes() const;
  // The calling thread's work alone, with a scratch of its own.
  void run(const uint16_t* a, const uint16_t* b, float* c, void* scratch) const;
  OnednnBfloat16Gemm(const OnednnBfloat16Gemm&) = delete;
  OnednnBfloat16Gemm& operator=(const OnednnBfloat16Gemm&) = delete;
  ~OnednnBfloat16Gemm();

 private:
  struct Primitive;
  explicit OnednnBfloat16Gemm(std::unique_ptr<const Primitive> primitive);
  std::unique_ptr<const Primitive> primitive_;
};

}  // namespace pipeshard::kernels
