#include "runtime/kernels/products/onednn.h"

#include <dnnl.h>

#include "ir/base/error.h"

namespace pipeshard::kernels {

void onednnGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                const float* a, int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a,
                                          lda, b, ldb, beta, c, ldc);
  PIPESHARD_CHECK(status == dnnl_success, "oneDNN sgemm of {}x{}x{} returned status {}", m, n, k,
                  static_cast<int>(status));
}

}  // namespace pipeshard::kernels
