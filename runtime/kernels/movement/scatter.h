// Positions addressed by index tensors: the flat data position of every index of GatherElements,
// ScatterElements, GatherND and ScatterND.
#pragma once

#include "runtime/kernels/base/indices.h"

namespace pipeshard::kernels {

// GatherElements / ScatterElements: index tensor of shape `indices` into data of shape `data` along `axis`.
struct ElementsPlan {
  Shape indices;
  Shape data_strides;
  size_t axis = 0;
  int64_t size = 0;   // of data's axis
  int64_t count = 0;  // elements of the index tensor
  std::string node;
};

// Checks ranks and sizes: indices may be smaller than data on every axis but `axis`.
ElementsPlan planElements(const KernelSpec& spec, const Shape& data, const Shape& indices);

// body(i, position): element i of the index tensor addresses data[position]. In order. Indices must have been
// checked.
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

// GatherND / ScatterND: `tuples` index tuples of `depth` entries each address slices of `slice` elements.
struct TuplePlan {
  int64_t batches = 1;       // leading axes shared by data and indices (GatherND's batch_dims)
  int64_t batch_stride = 0;  // data elements per batch
  int64_t tuples = 1;        // per batch
  int64_t depth = 0;
  std::vector<int64_t> sizes;    // of the addressed data axes
  std::vector<int64_t> strides;  // in elements
  int64_t slice = 1;
  Shape output;  // batch + tuple + slice axes
  std::string node;
};
TuplePlan planTuples(const KernelSpec& spec, const Shape& data, const Shape& indices, int64_t batch_dims);

// Error(kBadModel) when an entry is out of range.
void checkTuples(const TuplePlan& plan, const int64_t* indices);

// The data position of tuple `tuple` of batch `batch`.
int64_t tuplePosition(const TuplePlan& plan, const int64_t* indices, int64_t batch, int64_t tuple);

}  // namespace pipeshard::kernels
