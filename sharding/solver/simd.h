// One loop, compiled for several instruction sets, the best chosen at run time. Only for bodies that add and
// compare: their results are the same bits everywhere.
#pragma once

namespace pipeshard::solver {

#if defined(__x86_64__)
template <typename Body, typename... Args>
__attribute__((target("avx2"))) void runAvx2(Args... args) {
  Body::run(args...);
}
template <typename Body, typename... Args>
__attribute__((target("avx512f,avx512dq,avx512vl,avx2"))) void runAvx512(Args... args) {
  Body::run(args...);
}
#endif

// Body::run must be marked inline __attribute__((always_inline)).
template <typename Body, typename... Args>
void runVectorised(Args... args) {
#if defined(__x86_64__)
  static const int level = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                                   __builtin_cpu_supports("avx512vl")
                               ? 2
                           : __builtin_cpu_supports("avx2") ? 1
                                                            : 0;
  if (level == 2) return runAvx512<Body, Args...>(args...);
  if (level == 1) return runAvx2<Body, Args...>(args...);
#endif
  Body::run(args...);
}

}  // namespace pipeshard::solver
