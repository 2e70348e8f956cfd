// softmax(scores) V and its gradients, on any device, without a matrix of scores in memory. Each row keeps
// its largest score and its sum of exponentials, from which the gradients compute the probabilities again.
// Sums are formed in an order that sizes decide. T: float, double.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/kernels/base/strided_copy.h"

namespace pipeshard {
class DeviceQueue;
}

namespace pipeshard::kernels {

// What lies over the scores, broadcast to [matrices, queries, keys].
struct ScoreOverlay {
  std::vector<int64_t> offsets;  // by matrix: elements before its first one; empty: there is no overlay
  int64_t elements = 0;
  StridedCopy heads;          // the same as strides, from overlays to matrices
  int64_t row_stride = 0;     // elements between rows; 0: one row for all
  int64_t column_stride = 0;  // 1 or 0
};

struct AttentionShape {
  int64_t matrices = 0;  // heads of all examples
  int64_t group = 1;     // so many of them, one behind the other, have the same keys and values
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t width = 0;        // of Q and K
  int64_t value_width = 0;  // of V
  ScoreOverlay mask, bias, second_bias, keep;
  bool bias_first = false;   // and the second, which is behind the first
  bool nan_to_zero = false;  // probabilities that are NaN

  int64_t keyMatrices() const { return matrices / group; }
};

// Q [matrices, queries, width], K [keyMatrices, keys, width], V [keyMatrices, keys, value_width], dense.
template <typename T>
struct AttentionInputs {
  const T* query = nullptr;
  const T* key = nullptr;
  const T* value = nullptr;
  const T* scale = nullptr;
  const bool* mask = nullptr;  // false: the score is `fill`
  const T* fill = nullptr;     // there with a mask
  const T* bias = nullptr;
  const T* second_bias = nullptr;
  const bool* keep = nullptr;  // false: the probability is 0 in the product with V, else times `factor`
  const T* factor = nullptr;   // there with `keep`
};

// Per row, of [matrices, queries].
template <typename T>
struct RowStatistics {
  const T* most = nullptr;
  const T* sum = nullptr;
};

// y [matrices, queries, value_width]; `most`, `sum`: nullptr: not asked for.
template <typename T>
void attend(DeviceQueue* queue, const AttentionShape& shape, const AttentionInputs<T>& inputs, T* y, T* most,
            T* sum);

template <typename T>
struct AttentionGradients {
  T* query = nullptr;  // nullptr: not asked for
  T* key = nullptr;
  T* value = nullptr;
};

// `dots`: room for one number by row where kAttentionKeepsDots.
template <typename T>
void attentionGrad(DeviceQueue* queue, const AttentionShape& shape, const AttentionInputs<T>& inputs,
                   const T* dy, const RowStatistics<T>& rows, T* dots,
                   const AttentionGradients<T>& gradients);
extern const bool kAttentionKeepsDots;

// The gradient of the scores where the bias is added, [matrices, queries, keys].
template <typename T>
void attentionScoresGrad(DeviceQueue* queue, const AttentionShape& shape, const AttentionInputs<T>& inputs,
                         const T* dy, const RowStatistics<T>& rows, T* dscores);

// Of a source that defines them.
#define PIPESHARD_ATTENTION_INSTANCES(T)                                                                \
  template void attend(DeviceQueue*, const AttentionShape&, const AttentionInputs<T>&, T*, T*, T*);     \
  template void attentionGrad(DeviceQueue*, const AttentionShape&, const AttentionInputs<T>&, const T*, \
                              const RowStatistics<T>&, T*, const AttentionGradients<T>&);               \
  template void attentionScoresGrad(DeviceQueue*, const AttentionShape&, const AttentionInputs<T>&,     \
                                    const T*, const RowStatistics<T>&, T*);

}  // namespace pipeshard::kernels
