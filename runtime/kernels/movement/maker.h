// Tensors that are made rather than moved, on any device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/kernels/base/axis_split.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// out = bytes, which are the host's, and may go as soon as the call returns.
void storeBytes(DeviceQueue* queue, std::span<const std::byte> bytes, std::byte* out);

// out[i] = start + i * delta. T: float, double, int32_t, int64_t.
template <typename T>
void fillRange(DeviceQueue* queue, int64_t count, const T* start, const T* delta, T* out);

// [rows, columns]: `one` at column - row = diagonal, 0 elsewhere. T: uint8_t, uint32_t, uint64_t.
template <typename T>
void fillDiagonal(DeviceQueue* queue, int64_t rows, int64_t columns, int64_t diagonal, T one, T* out);

// indices [outer, inner] -> [outer, size, inner]: values[1] where the axis equals the index (counted from the
// end if negative), values[0] elsewhere; an index that is outside is nowhere. V: Bits (copy_elements.h); I:
// int32_t, int64_t, float, double.
template <typename V, typename I>
void fillOneHot(DeviceQueue* queue, const AxisSplit& split, const I* indices, const V* values, V* out);

struct TrianglePlan {
  int64_t batch = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t diagonal = 0;
  bool upper = true;

  // Of matrices one below the other, the part of a row that is kept begins (lower: ends) at this column.
  PIPESHARD_INLINE int64_t edge(int64_t row) const { return row % rows + diagonal + (upper ? 0 : 1); }
};

// What the triangle keeps of matrices, 0 elsewhere; out may be x. T: Bits.
template <typename T>
void keepTriangle(DeviceQueue* queue, const TrianglePlan& plan, const T* x, T* out);

// Of a source that defines them.
#define PIPESHARD_MAKER_INSTANCES_OF_BITS(T)                                              \
  template void fillOneHot(DeviceQueue*, const AxisSplit&, const int32_t*, const T*, T*); \
  template void fillOneHot(DeviceQueue*, const AxisSplit&, const int64_t*, const T*, T*); \
  template void fillOneHot(DeviceQueue*, const AxisSplit&, const float*, const T*, T*);   \
  template void fillOneHot(DeviceQueue*, const AxisSplit&, const double*, const T*, T*);  \
  template void keepTriangle(DeviceQueue*, const TrianglePlan&, const T*, T*);
#define PIPESHARD_MAKER_INSTANCES                                                           \
  PIPESHARD_MAKER_INSTANCES_OF_BITS(uint8_t)                                                \
  PIPESHARD_MAKER_INSTANCES_OF_BITS(uint16_t)                                               \
  PIPESHARD_MAKER_INSTANCES_OF_BITS(uint32_t)                                               \
  PIPESHARD_MAKER_INSTANCES_OF_BITS(uint64_t)                                               \
  template void fillDiagonal(DeviceQueue*, int64_t, int64_t, int64_t, uint8_t, uint8_t*);   \
  template void fillDiagonal(DeviceQueue*, int64_t, int64_t, int64_t, uint32_t, uint32_t*); \
  template void fillDiagonal(DeviceQueue*, int64_t, int64_t, int64_t, uint64_t, uint64_t*); \
  template void fillRange(DeviceQueue*, int64_t, const float*, const float*, float*);       \
  template void fillRange(DeviceQueue*, int64_t, const double*, const double*, double*);    \
  template void fillRange(DeviceQueue*, int64_t, const int32_t*, const int32_t*, int32_t*); \
  template void fillRange(DeviceQueue*, int64_t, const int64_t*, const int64_t*, int64_t*);

}  // namespace pipeshard::kernels
