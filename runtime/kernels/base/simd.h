// One loop, compiled for several instruction sets, the best one chosen at run time. A Body is a struct with a
// static function `run` marked PIPESHARD_INLINE, whose callees are inlined as well:
//
//   struct Double { PIPESHARD_INLINE static void run(const float* x, float* y, int64_t n) { ... } };
//   runVectorised<Double>(x, y, n);
//
// The instruction set changes rounding (fused multiply-add), so bits are equal only between equal machines.
#pragma once

#ifdef __CUDACC__
#define PIPESHARD_INLINE __host__ __device__ __forceinline__
#else
#define PIPESHARD_INLINE inline __attribute__((always_inline))
#endif
// The same after a lambda's parameters: [x](int64_t i) PIPESHARD_LAMBDA_INLINE { return x[i]; }
#define PIPESHARD_LAMBDA_INLINE __attribute__((always_inline))

namespace pipeshard::kernels {

enum class SimdLevel { kBase, kAvx2, kAvx512 };

// What this processor can run; kBase on other architectures.
SimdLevel simdLevel();

#if defined(__x86_64__)
template <typename Body, typename... Args>
__attribute__((target("avx2,fma"))) void runAvx2(Args... args) {
  Body::run(args...);
}
template <typename Body, typename... Args>
__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))) void runAvx512(Args... args) {
  Body::run(args...);
}
#endif

template <typename Body, typename... Args>
void runVectorised(Args... args) {
#if defined(__x86_64__)
  switch (simdLevel()) {
    case SimdLevel::kAvx512: return runAvx512<Body, Args...>(args...);
    case SimdLevel::kAvx2: return runAvx2<Body, Args...>(args...);
    case SimdLevel::kBase: break;
  }
#endif
  Body::run(args...);
}

}  // namespace pipeshard::kernels
