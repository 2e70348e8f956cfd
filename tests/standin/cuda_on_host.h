// CUDA C++ for g++: kernels as host functions, a block's threads as fibers of one thread. Included before
// everything
// (-include) in a twin; the stand-in includes it for the types.
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <tuple>
#include <utility>

namespace standin {

struct Thread {
  uint3 thread, block;
  dim3 block_size, grid_size;
};

// How to copy the arguments of a launch, and to run one thread with them.
struct KernelEntry {
  void* (*copy)(void** arguments);
  void (*run)(void* copied);
  void (*drop)(void* copied);
  size_t bytes;  // of the copied ones
};

extern "C" const Thread* standin_thread();  // of the running fiber
// Of the __syncthreads of a source line; `file` as __FILE__.
extern "C" void standin_barrier(const char* file, unsigned line);
extern "C" uint64_t standin_exchange(uint32_t mask, uint64_t value, int from_lane);
extern "C" void standin_atomic(const void* address, size_t bytes);
extern "C" void standin_register(const char* mangled, const KernelEntry* entry);

}  // namespace standin

#ifdef PIPESHARD_CUDA_TWIN

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#define threadIdx (standin::standin_thread()->thread)
#define blockIdx (standin::standin_thread()->block)
#define blockDim (standin::standin_thread()->block_size)
#define gridDim (standin::standin_thread()->grid_size)
// Of accesses that are the stand-in's own.
#define STANDIN_PLAIN __attribute__((no_sanitize("thread"), noinline))

namespace standin {

template <auto Kernel, typename... P>
struct Thunk {
  using Arguments = std::tuple<P...>;
  template <size_t... I>
  static void* copyAt(void** from, std::index_sequence<I...>) {
    return new Arguments(*static_cast<P*>(from[I])...);
  }
  static void* copy(void** from) { return copyAt(from, std::index_sequence_for<P...>{}); }
  static void run(void* copied) { std::apply(Kernel, *static_cast<Arguments*>(copied)); }
  static void drop(void* copied) { delete static_cast<Arguments*>(copied); }
};

template <auto Kernel, typename... P>
bool registerKernel(void (*)(P...)) {
  static const KernelEntry entry{Thunk<Kernel, P...>::copy, Thunk<Kernel, P...>::run,
                                 Thunk<Kernel, P...>::drop, sizeof(typename Thunk<Kernel, P...>::Arguments)};
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(Kernel), &info) != 0 && info.dli_sname != nullptr)
    standin_register(info.dli_sname, &entry);
  return true;
}
// Made when the twin is loaded, for every kernel that a launch in it names.
template <auto Kernel>
inline const bool kRegistered = registerKernel<Kernel>(Kernel);

}  // namespace standin

inline void __syncthreads(std::source_location at = std::source_location::current()) {
  standin::standin_barrier(at.file_name(), at.line());
}

template <typename T>
STANDIN_PLAIN T __shfl_xor_sync(unsigned mask, T value, int distance) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  const int lane = static_cast<int>(threadIdx.x % 32);
  bits = standin::standin_exchange(mask, bits, lane ^ distance);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <typename T>
STANDIN_PLAIN T atomicMin(T* place, T value) {
  standin::standin_atomic(place, sizeof(T));
  const T before = *place;
  if (value < before) *place = value;
  return before;
}

#endif
