// How .cu files launch kernels, spelled once: for nvcc, and for g++, which compiles the same files for the
// stand-in (tests/standin), where a kernel is found by its name. No header with fmt comes in here: nvcc
// refuses it.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// Of a queue of the CUDA device.
cudaStream_t streamOf(const DeviceQueue* queue);
// Throws the Error of a launch that failed; `kernel` as the compiler spells it.
void checkLaunch(const char* kernel);
// Throws the Error of a library's call.
[[noreturn]] void failCall(const char* call, const char* why);

inline constexpr unsigned kBlockThreads = 256;
inline constexpr int64_t kMostBlocks = 4096;

// Blocks for `count` elements, one a thread; a kernel's loop takes what is more. At least one.
inline dim3 blocksFor(int64_t count) {
  const int64_t blocks = (count + kBlockThreads - 1) / kBlockThreads;
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(blocks, 1, kMostBlocks)));
}

#if defined(__CUDACC__)
template <auto Kernel, typename... Args>
void launch(dim3 grid, dim3 block, cudaStream_t stream, Args... args) {
  Kernel<<<grid, block, 0, stream>>>(args...);
  checkLaunch(__PRETTY_FUNCTION__);
}
#elif defined(PIPESHARD_CUDA_TWIN)
template <auto Kernel, typename... Args>
void launch(dim3, dim3, cudaStream_t, Args...) {
  static_cast<void>(standin::kRegistered<Kernel>);
}
#endif

}  // namespace pipeshard::kernels
