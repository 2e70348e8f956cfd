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

// By key: 1 if the overlays leave its score where it is.
template <typename T>
struct SeenRow {
  PIPESHARD_INLINE static void run(const bool* mask, int64_t mask_stride, bool hides, const T* bias,
                                   int64_t bias_stride, bool mask_is_last, uint8_t* seen, int64_t keys) {
    for (int64_t j = 0; j < keys; ++j) seen[j] = 1;
    if (bias != nullptr) {
      for (int64_t j = 0; j < keys; ++j) seen[j] = !(bias[j * bias_stride] <= T(kFarBelow));
    }
    if (mask == nullptr || !hides) return;
    if (mask_is_last || bias == nullptr) {
      for (int64_t j = 0; j < keys; ++j) seen[j] = seen[j] & mask[j * mask_stride];
    } else {  // what is added behind the mask must not bring a score back
      for (int64_t j = 0; j < keys; ++j)
        seen[j] = seen[j] & (mask[j * mask_stride] | !(bias[j * bias_stride] <= T(-kNearby)));
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
  const bool masks = !shape.mask.offsets.empty() && inputs.fill <= T(kFarBelow);
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
  forEachBlock(std::ssize(first_matrix), true, [&](int64_t p) { look(p, first_matrix[p]); });
}

template <typename T>
void VisibleKeys<T>::look(int64_t pattern, int64_t matrix) {
  thread_local std::vector<uint8_t> seen;
  if (std::ssize(seen) < shape_.keys) seen.resize(shape_.keys);
  const auto row = [&](const ScoreOverlay& overlay, int64_t query) {
    return overlay.offsets[matrix] + query * overlay.row_stride;
  };
  for (int64_t query = 0; query < shape_.queries; ++query) {
    const bool* mask = shape_.mask.offsets.empty() ? nullptr : inputs_.mask + row(shape_.mask, query);
    const T* bias = shape_.bias.offsets.empty() ? nullptr : inputs_.bias + row(shape_.bias, query);
    runVectorised<SeenRow<T>>(mask, shape_.mask.column_stride, inputs_.fill <= T(kFarBelow), bias,
                              shape_.bias.column_stride, shape_.bias_first, seen.data(), shape_.keys);
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
  const T k = largest(inputs_.key + matrix * shape_.keys * shape_.width, shape_.keys * shape_.width);
  const T v =
      largest(inputs_.value + matrix * shape_.keys * shape_.value_width, shape_.keys * shape_.value_width);
  const double bound = std::abs(static_cast<double>(inputs_.scale)) * static_cast<double>(shape_.width) *
                       static_cast<double>(q) * static_cast<double>(k);
  return bound < -kNearby && std::isfinite(v);
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
