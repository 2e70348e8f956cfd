// Plans of the host as kernels take them: by value, with as many axes as a tensor may have here.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "ir/base/shape.h"

namespace pipeshard::kernels {

inline constexpr int kMostAxes = 12;

// Sizes of axes, outermost first, and what a step along each adds to `Offsets` places.
template <int Offsets>
struct AxisWalk {
  int axes = 0;
  int64_t sizes[kMostAxes] = {};
  int64_t strides[kMostAxes][Offsets] = {};

  // False: there are too many.
  bool add(int64_t size, const std::array<int64_t, Offsets>& steps) {
    if (axes == kMostAxes) return false;
    sizes[axes] = size;
    for (int i = 0; i < Offsets; ++i) strides[axes][i] = steps[i];
    ++axes;
    return true;
  }

#ifdef __CUDACC__
  __host__ __device__
#endif
      void
      offsetsOf(int64_t index, int64_t (&offsets)[Offsets]) const {
    for (int a = axes - 1; a >= 0; --a) {
      const int64_t at = index % sizes[a];
      index /= sizes[a];
      for (int i = 0; i < Offsets; ++i) offsets[i] += at * strides[a][i];
    }
  }
};

// Throws Error(kBadModel): a tensor of more axes than kMostAxes.
[[noreturn]] void refuseAxes(size_t axes);

}  // namespace pipeshard::kernels
