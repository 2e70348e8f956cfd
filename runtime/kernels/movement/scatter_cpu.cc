#include <algorithm>

#include "runtime/kernels/base/indices.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/movement/scatter.h"

namespace pipeshard::kernels {
namespace {

// body(i, position): element i of the index tensor addresses data[position]. In order.
template <typename I, typename Body>
void forElements(const ElementsPlan& plan, const I* indices, const Body& body) {
  if (plan.count == 0) return;
  std::vector<int64_t> at(plan.indices.size(), 0);
  int64_t base = 0;  // position from all axes but `axis`
  for (int64_t i = 0; i < plan.count; ++i) {
    body(i, base + wrapIndex(indices[i], plan.size) * plan.data_strides[plan.axis]);
    for (size_t a = at.size(); a-- > 0;) {
      if (a != plan.axis) base += plan.data_strides[a];
      if (++at[a] < plan.indices[a]) break;
      if (a != plan.axis) base -= plan.indices[a] * plan.data_strides[a];
      at[a] = 0;
    }
  }
}

// The data position of tuple `tuple` of batch `batch`.
int64_t tuplePosition(const TuplePlan& plan, const int64_t* indices, int64_t batch, int64_t tuple) {
  const int64_t* entries = indices + (batch * plan.tuples + tuple) * plan.depth;
  int64_t position = batch * plan.batch_stride;
  for (size_t i = 0; i < plan.sizes.size(); ++i)
    position += wrapIndex(entries[i], plan.sizes[i]) * plan.strides[i];
  return position;
}

}  // namespace

template <typename T, typename I>
void gatherAddressed(DeviceQueue*, const ElementsPlan& plan, const T* data, const I* indices, T* out) {
  forElements(plan, indices, [&](int64_t i, int64_t position) { out[i] = data[position]; });
}

// By one thread.
template <Update U, typename T, typename I>
void scatterAddressed(DeviceQueue*, const ElementsPlan& plan, const I* indices, const T* updates, T* out) {
  forElements(plan, indices,
              [&](int64_t i, int64_t position) { out[position] = updated<U>(out[position], updates[i]); });
}

template <typename T>
void gatherTuples(DeviceQueue*, const TuplePlan& plan, const T* data, const int64_t* indices, T* out) {
  forRows(plan.batches * plan.tuples, plan.slice, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const T* from = data + tuplePosition(plan, indices, i / plan.tuples, i % plan.tuples);
      std::copy(from, from + plan.slice, out + i * plan.slice);
    }
  });
}

template <Update U, typename T>
void scatterTuples(DeviceQueue*, const TuplePlan& plan, const int64_t* indices, const T* updates, T* out) {
  for (int64_t tuple = 0; tuple < plan.tuples; ++tuple) {
    T* to = out + tuplePosition(plan, indices, 0, tuple);
    for (int64_t i = 0; i < plan.slice; ++i) to[i] = updated<U>(to[i], updates[tuple * plan.slice + i]);
  }
}

PIPESHARD_ALL_SCATTER_INSTANCES

}  // namespace pipeshard::kernels
