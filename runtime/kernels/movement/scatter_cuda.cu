#include "runtime/kernels/base/cuda_indices.h"
#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/movement/scatter.h"

namespace pipeshard::kernels {

// The lines of an ElementsPlan, by value.
struct LinesWalk {
  AxisWalk<2> lines;
  int64_t count = 0;
  int64_t length = 0;
  int64_t index_stride = 0;
  int64_t data_stride = 0;
  int64_t size = 0;

  explicit LinesWalk(const ElementsPlan& plan)
      : lines(walkOf(plan.lines)),
        count(plan.length == 0 ? 0 : plan.count / plan.length),
        length(plan.length),
        index_stride(plan.index_stride),
        data_stride(plan.data_strides[plan.axis]),
        size(plan.size) {}
};

template <typename T, typename I>
__global__ void gatherAddressedKernel(LinesWalk walk, const T* data, const I* indices, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  const int64_t all = walk.count * walk.length;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step) {
    int64_t offsets[2] = {0, 0};
    walk.lines.offsetsOf(i / walk.length, offsets);
    const int64_t at = offsets[0] + i % walk.length * walk.index_stride;
    out[at] = data[offsets[1] + rowOf(indices[at], walk.size) * walk.data_stride];
  }
}

// A thread for each line, so that each element has one writer and the order of its updates is fixed.
template <Update U, typename T, typename I>
__global__ void scatterAddressedKernel(LinesWalk walk, const I* indices, const T* updates, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t line = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; line < walk.count; line += step) {
    int64_t offsets[2] = {0, 0};
    walk.lines.offsetsOf(line, offsets);
    for (int64_t i = 0; i < walk.length; ++i) {
      const int64_t at = offsets[0] + i * walk.index_stride;
      T* place = out + offsets[1] + rowOf(indices[at], walk.size) * walk.data_stride;
      *place = updated<U>(*place, updates[at]);
    }
  }
}

// A TuplePlan, by value.
struct TupleWalk {
  int64_t batch_stride = 0;
  int64_t tuples = 0;
  int64_t slice = 0;
  int depth = 0;
  int64_t sizes[kMostAxes] = {};
  int64_t strides[kMostAxes] = {};

  explicit TupleWalk(const TuplePlan& plan)
      : batch_stride(plan.batch_stride), tuples(plan.tuples), slice(plan.slice) {
    if (plan.sizes.size() > kMostAxes) refuseAxes(plan.sizes.size());
    for (; depth < static_cast<int>(plan.sizes.size()); ++depth) {
      sizes[depth] = plan.sizes[depth];
      strides[depth] = plan.strides[depth];
    }
  }
  // Of the slice that a tuple (counted over all batches) names.
  __device__ int64_t positionOf(const int64_t* indices, int64_t tuple) const {
    int64_t position = tuple / tuples * batch_stride;
    for (int e = 0; e < depth; ++e) position += rowOf(indices[tuple * depth + e], sizes[e]) * strides[e];
    return position;
  }
};

template <typename T>
__global__ void gatherTuplesKernel(TupleWalk walk, int64_t all, const T* data, const int64_t* indices,
                                   T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < all; i += step)
    out[i] = data[walk.positionOf(indices, i / walk.slice) + i % walk.slice];
}

// A thread for each element of a slice, likewise.
template <Update U, typename T>
__global__ void scatterTuplesKernel(TupleWalk walk, const int64_t* indices, const T* updates, T* out) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < walk.slice; i += step) {
    for (int64_t tuple = 0; tuple < walk.tuples; ++tuple) {
      T* place = out + walk.positionOf(indices, tuple) + i;
      *place = updated<U>(*place, updates[tuple * walk.slice + i]);
    }
  }
}

template <typename T, typename I>
void gatherAddressed(DeviceQueue* queue, const ElementsPlan& plan, const T* data, const I* indices, T* out) {
  if (plan.count == 0) return;
  launch<gatherAddressedKernel<T, I>>(blocksFor(plan.count), dim3(kBlockThreads), streamOf(queue),
                                      LinesWalk(plan), data, indices, out);
}

template <Update U, typename T, typename I>
void scatterAddressed(DeviceQueue* queue, const ElementsPlan& plan, const I* indices, const T* updates,
                      T* out) {
  if (plan.count == 0) return;
  launch<scatterAddressedKernel<U, T, I>>(blocksFor(plan.count / plan.length), dim3(kBlockThreads),
                                          streamOf(queue), LinesWalk(plan), indices, updates, out);
}

template <typename T>
void gatherTuples(DeviceQueue* queue, const TuplePlan& plan, const T* data, const int64_t* indices, T* out) {
  const int64_t all = plan.batches * plan.tuples * plan.slice;
  if (all == 0) return;
  launch<gatherTuplesKernel<T>>(blocksFor(all), dim3(kBlockThreads), streamOf(queue), TupleWalk(plan), all,
                                data, indices, out);
}

template <Update U, typename T>
void scatterTuples(DeviceQueue* queue, const TuplePlan& plan, const int64_t* indices, const T* updates,
                   T* out) {
  if (plan.tuples * plan.slice == 0) return;
  launch<scatterTuplesKernel<U, T>>(blocksFor(plan.slice), dim3(kBlockThreads), streamOf(queue),
                                    TupleWalk(plan), indices, updates, out);
}

PIPESHARD_ALL_SCATTER_INSTANCES

}  // namespace pipeshard::kernels
