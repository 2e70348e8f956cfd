// Elements and slices addressed by index tensors (GatherElements, ScatterElements, GatherND, ScatterND), on
// any device. Indices in [-size, size), which has been checked.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "ir/base/shape.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/base/strided_copy.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// What an update does to the element that it hits. Integers wrap around.
enum class Update { kSet, kAdd, kMultiply, kMaximum, kMinimum };

template <Update U, typename T>
PIPESHARD_INLINE T updated(T before, T update) {
  using Wide =
      typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;
  if constexpr (U == Update::kSet)
    return update;
  else if constexpr (U == Update::kAdd)
    return T(Wide(before) + Wide(update));
  else if constexpr (U == Update::kMultiply)
    return T(Wide(before) * Wide(update));
  else if constexpr (U == Update::kMaximum)
    return before < update ? update : before;
  else
    return update < before ? update : before;
}

// An index tensor of shape `indices` into data along `axis`.
struct ElementsPlan {
  Shape indices;
  Shape data_strides;
  size_t axis = 0;
  int64_t size = 0;   // of data's axis
  int64_t count = 0;  // elements of the index tensor
  // All axes but `axis`: from the index tensor to the data. Only elements of one line can address one place.
  StridedCopy lines;
  int64_t length = 1;        // of a line
  int64_t index_stride = 1;  // along a line
};

// `tuples` index tuples of `depth` entries each address slices of `slice` elements.
struct TuplePlan {
  int64_t batches = 1;       // leading axes shared by data and indices (GatherND's batch_dims)
  int64_t batch_stride = 0;  // data elements per batch
  int64_t tuples = 1;        // per batch
  int64_t depth = 0;
  std::vector<int64_t> sizes;    // of the addressed data axes
  std::vector<int64_t> strides;  // in elements
  int64_t slice = 1;
  Shape output;  // batch + tuple + slice axes
};

// out[i] = the element of data that index i addresses. T: Bits (copy_elements.h); I: int32_t, int64_t, as
// below.
template <typename T, typename I>
void gatherAddressed(DeviceQueue* queue, const ElementsPlan& plan, const T* data, const I* indices, T* out);
// Updates of one element happen in the order of the index tensor. U = kSet: T as Bits; others: float, double,
// int32_t, int64_t.
template <Update U, typename T, typename I>
void scatterAddressed(DeviceQueue* queue, const ElementsPlan& plan, const I* indices, const T* updates,
                      T* out);

template <typename T>
void gatherTuples(DeviceQueue* queue, const TuplePlan& plan, const T* data, const int64_t* indices, T* out);
// Likewise; batches is 1.
template <Update U, typename T>
void scatterTuples(DeviceQueue* queue, const TuplePlan& plan, const int64_t* indices, const T* updates,
                   T* out);

// Of a source that defines them.
#define PIPESHARD_SCATTER_INSTANCES(U, T)                                                                    \
  template void scatterAddressed<U, T, int32_t>(DeviceQueue*, const ElementsPlan&, const int32_t*, const T*, \
                                                T*);                                                         \
  template void scatterAddressed<U, T, int64_t>(DeviceQueue*, const ElementsPlan&, const int64_t*, const T*, \
                                                T*);                                                         \
  template void scatterTuples<U, T>(DeviceQueue*, const TuplePlan&, const int64_t*, const T*, T*);
#define PIPESHARD_UPDATE_INSTANCES(T)               \
  PIPESHARD_SCATTER_INSTANCES(Update::kAdd, T)      \
  PIPESHARD_SCATTER_INSTANCES(Update::kMultiply, T) \
  PIPESHARD_SCATTER_INSTANCES(Update::kMaximum, T)  \
  PIPESHARD_SCATTER_INSTANCES(Update::kMinimum, T)
#define PIPESHARD_MOVED_INSTANCES(T)                                                              \
  template void gatherAddressed(DeviceQueue*, const ElementsPlan&, const T*, const int32_t*, T*); \
  template void gatherAddressed(DeviceQueue*, const ElementsPlan&, const T*, const int64_t*, T*); \
  template void gatherTuples(DeviceQueue*, const TuplePlan&, const T*, const int64_t*, T*);       \
  PIPESHARD_SCATTER_INSTANCES(Update::kSet, T)
#define PIPESHARD_ALL_SCATTER_INSTANCES \
  PIPESHARD_MOVED_INSTANCES(uint8_t)    \
  PIPESHARD_MOVED_INSTANCES(uint16_t)   \
  PIPESHARD_MOVED_INSTANCES(uint32_t)   \
  PIPESHARD_MOVED_INSTANCES(uint64_t)   \
  PIPESHARD_UPDATE_INSTANCES(float)     \
  PIPESHARD_UPDATE_INSTANCES(double)    \
  PIPESHARD_UPDATE_INSTANCES(int32_t)   \
  PIPESHARD_UPDATE_INSTANCES(int64_t)

}  // namespace pipeshard::kernels
