// softmax(scores) V and its gradients, a block of queries at a time: what is in memory of the scores is a
// block of rows per thread (blockOfQueries). Each row keeps its largest score and its sum of exponentials,
// from which the gradients compute the probabilities again.
//
// A block's rows, or for gradients of keys and values a whole matrix, are one thread's, in an order that
// sizes decide: bits do not depend on threads. T: float, double.
#pragma once

#include <cstdint>
#include <vector>

namespace pipeshard::kernels {

// What lies over the scores, broadcast to [matrices, queries, keys].
struct ScoreOverlay {
  std::vector<int64_t> offsets;  // by matrix: elements before its first one; empty: there is no overlay
  int64_t row_stride = 0;        // elements between rows; 0: one row for all
  int64_t column_stride = 0;     // 1 or 0
};

struct AttentionShape {
  int64_t matrices = 0;  // heads of all examples
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t width = 0;        // of Q and K
  int64_t value_width = 0;  // of V
  ScoreOverlay mask, bias;
  bool bias_first = false;
  bool nan_to_zero = false;  // probabilities that are NaN
};

// Q [matrices, queries, width], K [.., keys, width], V [.., keys, value_width], dense.
template <typename T>
struct AttentionInputs {
  const T* query = nullptr;
  const T* key = nullptr;
  const T* value = nullptr;
  T scale = 1;
  const bool* mask = nullptr;  // false: the score is `fill`
  T fill = 0;
  const T* bias = nullptr;
};

// Per row, of [matrices, queries].
template <typename T>
struct RowStatistics {
  const T* most = nullptr;
  const T* sum = nullptr;
};

// y [matrices, queries, value_width]; `most`, `sum`: nullptr: not asked for.
template <typename T>
void attend(const AttentionShape& shape, const AttentionInputs<T>& inputs, T* y, T* most, T* sum);

// Gradients of Q, K and V; nullptr: not asked for.
template <typename T>
void attentionGrad(const AttentionShape& shape, const AttentionInputs<T>& inputs, const T* dy,
                   const RowStatistics<T>& rows, T* dquery, T* dkey, T* dvalue);

// The gradient of the scores where the bias is added, [matrices, queries, keys].
template <typename T>
void attentionScoresGrad(const AttentionShape& shape, const AttentionInputs<T>& inputs, const T* dy,
                         const RowStatistics<T>& rows, T* dscores);

}  // namespace pipeshard::kernels
