#include "runtime/kernels/base/simd.h"

namespace pipeshard::kernels {

SimdLevel simdLevel() {
#if defined(__x86_64__)
  static const SimdLevel level = [] {
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (avx2 && avx512) return SimdLevel::kAvx512;
    return avx2 ? SimdLevel::kAvx2 : SimdLevel::kBase;
  }();
  return level;
#else
  return SimdLevel::kBase;
#endif
}

}  // namespace pipeshard::kernels
