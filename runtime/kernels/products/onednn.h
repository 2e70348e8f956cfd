// Matrix products of oneDNN (2.x). Its errors come out as pipeshard::Error (kInternal).
#pragma once

#include <cstdint>

namespace pipeshard::kernels {

// C = alpha * op(A) * op(B) + beta * C in float32, row-major; op(A) is [m,k], op(B) is [k,n]. lda, ldb, ldc:
// elements between rows of A, B, C as stored. Runs on the calling thread when called inside an OpenMP
// parallel region.
void onednnGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

}  // namespace pipeshard::kernels
