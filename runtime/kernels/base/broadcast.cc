#include "runtime/kernels/base/broadcast.h"

#include "ir/base/error.h"

namespace pipeshard::kernels {
namespace {

// Element strides of `shape` when it is walked as `output`: 0 along broadcast axes.
Shape broadcastStrides(const Shape& shape, const Shape& output) {
  if (shape.size() > output.size()) {
    fail(ErrorCode::kBadModel, "shape {} does not broadcast to {}", shapeToString(shape),
         shapeToString(output));
  }
  const Shape dense = rowMajorStrides(shape);
  const size_t missing = output.size() - shape.size();
  Shape strides(output.size(), 0);
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 && shape[i] != output[missing + i]) {
      fail(ErrorCode::kBadModel, "shape {} does not broadcast to {}", shapeToString(shape),
           shapeToString(output));
    }
    if (shape[i] != 1) strides[missing + i] = dense[i];
  }
  return strides;
}

}  // namespace

Broadcast makeBroadcast(const Shape& output, const std::vector<Shape>& inputs) {
  PIPESHARD_CHECK(inputs.size() <= kMaxBroadcastInputs);
  std::vector<Shape> all;
  for (const Shape& shape : inputs) all.push_back(broadcastStrides(shape, output));
  Shape sizes;
  std::vector<BroadcastOffsets> strides;
  for (size_t axis = 0; axis < output.size(); ++axis) {
    if (output[axis] == 1) continue;
    BroadcastOffsets here{};
    for (size_t i = 0; i < all.size(); ++i) here[i] = all[i][axis];
    bool merge = !sizes.empty();
    for (size_t i = 0; merge && i < all.size(); ++i) merge = strides.back()[i] == here[i] * output[axis];
    if (merge) {
      sizes.back() *= output[axis];
      strides.back() = here;
    } else {
      sizes.push_back(output[axis]);
      strides.push_back(here);
    }
  }
  Broadcast plan;
  if (sizes.empty()) return plan;
  plan.length = sizes.back();
  plan.inner_strides = strides.back();
  sizes.pop_back();
  strides.pop_back();
  for (int64_t size : sizes) plan.rows *= size;
  plan.outer_sizes = std::move(sizes);
  plan.outer_strides = std::move(strides);
  return plan;
}

BroadcastOffsets Broadcast::rowStart(int64_t row) const {
  BroadcastOffsets start{};
  for (size_t axis = outer_sizes.size(); axis-- > 0;) {
    const int64_t index = row % outer_sizes[axis];
    row /= outer_sizes[axis];
    for (size_t i = 0; i < start.size(); ++i) start[i] += index * outer_strides[axis][i];
  }
  return start;
}

}  // namespace pipeshard::kernels
