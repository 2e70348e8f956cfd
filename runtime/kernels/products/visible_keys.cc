#include "runtime/kernels/products/visible_keys.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kQueriesOfAPart = 64;

// What is added to a row. Strides are 0 or 1.
template <typename T>
struct AddedRow {
  const T* bias = nullptr;
  int64_t stride = 0;

  PIPESHARD_INLINE bool hides(int64_t j) const { return bias[j * stride] <= T(kFarBelow); }
  // What is added behind must not bring a score back.
  PIPESHARD_INLINE bool bringsBack(int64_t j) const { return !(bias[j * stride] <= T(-kNearby)); }
};

// By key: 1 if the overlays leave its score where it is. A second bias only where there is a first.
template <typename T>
struct SeenRow {
  PIPESHARD_INLINE static void run(const bool* mask, int64_t mask_stride, AddedRow<T> first,
                                   AddedRow<T> second, bool mask_is_last, uint8_t* seen, int64_t keys) {
    for (int64_t j = 0; j < keys; ++j) seen[j] = 1;
    if (second.bias != nullptr) {
      for (int64_t j = 0; j < keys; ++j)
        seen[j] = !(first.hides(j) | second.hides(j)) | first.bringsBack(j) | second.bringsBack(j);
    } else if (const T* bias = first.bias; bias != nullptr) {
      forKeys(keys, first.stride,
              [=](int64_t j, int64_t at) PIPESHARD_LAMBDA_INLINE { seen[j] = !(bias[at] <= T(kFarBelow)); });
    }
    if (mask == nullptr) return;
    if (first.bias == nullptr || mask_is_last) {
      forKeys(keys, mask_stride, [=](int64_t j, int64_t at) PIPESHARD_LAMBDA_INLINE { seen[j] &= mask[at]; });
    } else {
      for (int64_t j = 0; j < keys; ++j) seen[j] &= mask[j * mask_stride] | first.bringsBack(j);
      if (second.bias == nullptr) return;
      for (int64_t j = 0; j < keys; ++j) seen[j] |= second.bringsBack(j);
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

template <typename T>
bool areSmall(const T* x, int64_t count) {
  std::vector<uint8_t> small((count + kBlockElements - 1) / kBlockElements);
  forBlocks(count, kBlockElements, [&](int64_t begin, int64_t end) {
    small[begin / kBlockElements] = largest(x + begin, end - begin) < T(-kNearby);
  });
  return std::find(small.begin(), small.end(), 0) == small.end();
}

}  // namespace

template <typename T>
VisibleKeys<T>::VisibleKeys(const AttentionShape& shape, const AttentionInputs<T>& inputs)
    : shape_(shape), inputs_(inputs) {
  if (shape.queries == 0 || shape.keys == 0) return;
  hides_ = !shape.mask.offsets.empty() && *inputs.fill <= T(kFarBelow);
  for (const Added& added :
       {Added{&shape.bias, inputs.bias}, Added{&shape.second_bias, inputs.second_bias}}) {
    if (added.overlay->offsets.empty()) continue;
    if (!areSmall(added.bias, added.overlay->elements)) added_.push_back(added);
  }
  if (!hides_ && added_.empty()) return;
  std::map<std::array<int64_t, 3>, int64_t> patterns;
  std::vector<int64_t> first_matrix;
  for (int64_t m = 0; m < shape.matrices; ++m) {
    std::array<int64_t, 3> key{hides_ ? shape.mask.offsets[m] : 0};
    for (size_t i = 0; i < added_.size(); ++i) key[1 + i] = added_[i].overlay->offsets[m];
    const auto [found, fresh] = patterns.try_emplace(key, std::ssize(patterns));
    if (fresh) first_matrix.push_back(m);
    pattern_.push_back(found->second);
  }
  visible_.resize(first_matrix.size() * shape.queries);
  const int64_t parts = (shape.queries + kQueriesOfAPart - 1) / kQueriesOfAPart;
  forEachBlock(std::ssize(first_matrix) * parts, true,
               [&](int64_t i) { look(i / parts, first_matrix[i / parts], i % parts * kQueriesOfAPart); });
  lookAtKeys();
}

template <typename T>
void VisibleKeys<T>::lookAtKeys() {
  largest_key_.resize(shape_.keyMatrices());
  are_numbers_.resize(shape_.keyMatrices());
  forEachBlock(shape_.keyMatrices(), true, [&](int64_t m) {
    const int64_t row = m * shape_.keys;
    largest_key_[m] = largest(inputs_.key + row * shape_.width, shape_.keys * shape_.width);
    are_numbers_[m] =
        std::isfinite(largest(inputs_.value + row * shape_.value_width, shape_.keys * shape_.value_width));
  });
}

template <typename T>
void VisibleKeys<T>::look(int64_t pattern, int64_t matrix, int64_t first) {
  thread_local std::vector<uint8_t> seen;
  if (std::ssize(seen) < shape_.keys) seen.resize(shape_.keys);
  for (int64_t query = first; query < std::min(shape_.queries, first + kQueriesOfAPart); ++query) {
    const auto row = [&](const ScoreOverlay& overlay) {
      return overlay.offsets[matrix] + query * overlay.row_stride;
    };
    std::array<AddedRow<T>, 2> added;
    for (size_t i = 0; i < added_.size(); ++i)
      added[i] = {added_[i].bias + row(*added_[i].overlay), added_[i].overlay->column_stride};
    runVectorised<SeenRow<T>>(hides_ ? inputs_.mask + row(shape_.mask) : nullptr, shape_.mask.column_stride,
                              added[0], added[1], shape_.bias_first, seen.data(), shape_.keys);
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
                       static_cast<double>(q) * static_cast<double>(largest_key_[matrix / shape_.group]);
  return bound < -kNearby && are_numbers_[matrix / shape_.group] != 0;
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
