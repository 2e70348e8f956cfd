#include "runtime/kernels/products/visible_keys.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kQueriesOfAPart = 64;

// By key: 1 if the overlays leave its score where it is. Strides are 0 or 1.
template <typename T>
struct SeenRow {
  PIPESHARD_INLINE static void run(const bool* mask, int64_t mask_stride, const T* bias, int64_t bias_stride,
                                   bool mask_is_last, uint8_t* seen, int64_t keys) {
    for (int64_t j = 0; j < keys; ++j) seen[j] = 1;
    if (bias != nullptr)
      forKeys(keys, bias_stride,
              [=](int64_t j, int64_t at) PIPESHARD_LAMBDA_INLINE { seen[j] = !(bias[at] <= T(kFarBelow)); });
    if (mask == nullptr) return;
    // What is added behind the mask must not bring a score back.
    if (bias != nullptr && !mask_is_last) {
      for (int64_t j = 0; j < keys; ++j)
        seen[j] &= mask[j * mask_stride] | !(bias[j * bias_stride] <= T(-kNearby));
    } else {
      forKeys(keys, mask_stride, [=](int64_t j, int64_t at) PIPESHARD_LAMBDA_INLINE { seen[j] &= mask[at]; });
    }
  }
  template <typename Body>
  PIPESHARD_INLINE static void forKeys(int64_t keys, int64_t stride, const Body& body) {
    if (stride == 1) {
      for (int64_t j = 0; j < keys; ++j) body(j, j);
    } else {
      for (int64_t j = 0; j < keys; ++j) body(j, 0);
    }
  }
};

template <typename T>
T largest(const T* x, int64_t count) {
  struct Largest {
    PIPESHARD_INLINE static void run(const T* x, int64_t count, T* result) {
      *result = maxOf<T>(count, T(0), [x](int64_t i) PIPESHARD_LAMBDA_INLINE { return std::abs(x[i]); });
    }
  };
  T result = 0;
  runVectorised<Largest>(x, count, &result);
  return result;
}

}  // namespace

template <typename T>
VisibleKeys<T>::VisibleKeys(const AttentionShape& shape, const AttentionInputs<T>& inputs)
    : shape_(shape), inputs_(inputs) {
  const bool masks = !shape.mask.offsets.empty() && *inputs.fill <= T(kFarBelow);
  if ((!masks && shape.bias.offsets.empty()) || shape.queries == 0 || shape.keys == 0) return;
  std::map<std::pair<int64_t, int64_t>, int64_t> patterns;
  std::vector<int64_t> first_matrix;
  for (int64_t m = 0; m < shape.matrices; ++m) {
    const std::pair<int64_t, int64_t> key(masks ? shape.mask.offsets[m] : 0,
                                          shape.bias.offsets.empty() ? 0 : shape.bias.offsets[m]);
    const auto [found, fresh] = patterns.try_emplace(key, std::ssize(patterns));
    if (fresh) first_matrix.push_back(m);
    pattern_.push_back(found->second);
  }
  visible_.resize(first_matrix.size() * shape.queries);
  hides_ = masks;
  const int64_t parts = (shape.queries + kQueriesOfAPart - 1) / kQueriesOfAPart;
  forEachBlock(std::ssize(first_matrix) * parts, true,
               [&](int64_t i) { look(i / parts, first_matrix[i / parts], i % parts * kQueriesOfAPart); });
  largest_key_.resize(shape.matrices);
  are_numbers_.resize(shape.matrices);
  forEachBlock(shape.matrices, true, [&](int64_t m) {
    const int64_t row = m * shape.keys;
    largest_key_[m] = largest(inputs.key + row * shape.width, shape.keys * shape.width);
    are_numbers_[m] =
        std::isfinite(largest(inputs.value + row * shape.value_width, shape.keys * shape.value_width));
  });
}

template <typename T>
void VisibleKeys<T>::look(int64_t pattern, int64_t matrix, int64_t first) {
  thread_local std::vector<uint8_t> seen;
  if (std::ssize(seen) < shape_.keys) seen.resize(shape_.keys);
  const auto row = [&](const ScoreOverlay& overlay, int64_t query) {
    return overlay.offsets[matrix] + query * overlay.row_stride;
  };
  for (int64_t query = first; query < std::min(shape_.queries, first + kQueriesOfAPart); ++query) {
    const bool* mask = hides_ ? inputs_.mask + row(shape_.mask, query) : nullptr;
    const T* bias = shape_.bias.offsets.empty() ? nullptr : inputs_.bias + row(shape_.bias, query);
    runVectorised<SeenRow<T>>(mask, shape_.mask.column_stride, bias, shape_.bias.column_stride,
                              shape_.bias_first, seen.data(), shape_.keys);
    KeyRange& range = visible_[pattern * shape_.queries + query];
    range = {0, shape_.keys};
    while (range.end > range.begin && seen[range.end - 1] == 0) --range.end;
    while (range.begin < range.end && seen[range.begin] == 0) ++range.begin;
  }
}

// |score| <= |scale| width max|q| max|k|, and a probability of 0 takes nothing of a value that is a number.
template <typename T>
bool VisibleKeys<T>::hasSmallProducts(int64_t matrix, int64_t first, int64_t count) const {
  const T q = largest(inputs_.query + (matrix * shape_.queries + first) * shape_.width, count * shape_.width);
  const double bound = std::abs(static_cast<double>(*inputs_.scale)) * static_cast<double>(shape_.width) *
                       static_cast<double>(q) * static_cast<double>(largest_key_[matrix]);
  return bound < -kNearby && are_numbers_[matrix] != 0;
}

template <typename T>
KeyRange VisibleKeys<T>::of(int64_t matrix, int64_t first, int64_t count) const {
  const KeyRange all{0, shape_.keys};
  if (pattern_.empty()) return all;
  KeyRange range{shape_.keys, 0};
  for (int64_t query = first; query < first + count; ++query) {
    const KeyRange& seen = visible_[pattern_[matrix] * shape_.queries + query];
    if (seen.size() == 0) return all;
    range.begin = std::min(range.begin, seen.begin);
    range.end = std::max(range.end, seen.end);
  }
  if (range.size() == shape_.keys || !hasSmallProducts(matrix, first, count)) return all;
  return range;
}

template class VisibleKeys<float>;
template class VisibleKeys<double>;

}  // namespace pipeshard::kernels
