// Plain: a block of threads for each row of queries, or of keys, which computes their scores twice.
#include <limits>

#include "runtime/kernels/base/cuda_block.h"
#include "runtime/kernels/base/cuda_indices.h"
#include "runtime/kernels/base/vector_math.h"
#include "runtime/kernels/products/attention.h"

namespace pipeshard::kernels {

// An overlay, by value.
struct OverlayWalk {
  AxisWalk<2> heads;
  int64_t row_stride = 0;
  int64_t column_stride = 0;

  explicit OverlayWalk(const ScoreOverlay& overlay)
      : row_stride(overlay.row_stride), column_stride(overlay.column_stride) {
    if (!overlay.offsets.empty()) heads = walkOf(overlay.heads);
  }
  __device__ int64_t at(int64_t matrix, int64_t query, int64_t key) const {
    int64_t offsets[2] = {0, 0};
    heads.offsetsOf(matrix, offsets);
    return offsets[0] + query * row_stride + key * column_stride;
  }
};

template <typename T>
__device__ T dotOf(const T* a, const T* b, int64_t count) {
  T sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// What kernels are told of a call.
template <typename T>
struct AttentionCall {
  int64_t matrices, group, queries, keys, width, value_width;
  bool bias_first, nan_to_zero;
  OverlayWalk mask, bias, second_bias, keep;
  AttentionInputs<T> inputs;

  AttentionCall(const AttentionShape& s, const AttentionInputs<T>& of)
      : matrices(s.matrices),
        group(s.group),
        queries(s.queries),
        keys(s.keys),
        width(s.width),
        value_width(s.value_width),
        bias_first(s.bias_first),
        nan_to_zero(s.nan_to_zero),
        mask(s.mask),
        bias(s.bias),
        second_bias(s.second_bias),
        keep(s.keep),
        inputs(of) {}

  // Of the matrix.
  __device__ const T* keysOf(int64_t matrix) const { return inputs.key + matrix / group * keys * width; }
  __device__ const T* valuesOf(int64_t matrix) const {
    return inputs.value + matrix / group * keys * value_width;
  }

  __device__ bool isMasked(int64_t matrix, int64_t query, int64_t key) const {
    return inputs.mask != nullptr && !inputs.mask[mask.at(matrix, query, key)];
  }
  __device__ T score(int64_t matrix, int64_t query, int64_t key) const {
    T score = *inputs.scale *
              dotOf(inputs.query + (matrix * queries + query) * width, keysOf(matrix) + key * width, width);
    if (bias_first) score = withBiases(score, matrix, query, key);
    if (isMasked(matrix, query, key)) score = *inputs.fill;
    return bias_first ? score : withBiases(score, matrix, query, key);
  }
  __device__ T withBiases(T score, int64_t matrix, int64_t query, int64_t key) const {
    if (inputs.bias != nullptr) score += inputs.bias[bias.at(matrix, query, key)];
    if (inputs.second_bias != nullptr) score += inputs.second_bias[second_bias.at(matrix, query, key)];
    return score;
  }
  __device__ T probability(T score, T most, T sum) const {
    const T p = fastExp(score - most) * (T(1) / sum);
    return nan_to_zero && p != p ? T(0) : p;
  }
  // x of a probability, or of its slope.
  __device__ T dropped(T x, int64_t matrix, int64_t query, int64_t key) const {
    if (inputs.keep == nullptr) return x;
    return inputs.keep[keep.at(matrix, query, key)] ? x * *inputs.factor : T(0);
  }
  // Of the probability.
  __device__ T slope(int64_t matrix, int64_t query, int64_t key, const T* dy) const {
    const T slope = dotOf(dy + (matrix * queries + query) * value_width, valuesOf(matrix) + key * value_width,
                          value_width);
    return dropped(slope, matrix, query, key);
  }
};

// out [columns] = sum of factors[i] * rows[i] over `count` rows, added to what is there if `add`. The threads
// of a block share the columns out; `factors`: shared memory.
template <typename T>
__device__ void addRows(const T* factors, int64_t count, const T* rows, int64_t columns, bool add, T* out) {
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    T sum = add ? out[c] : T(0);
    for (int64_t i = 0; i < count; ++i) sum += factors[i] * rows[i * columns + c];
    out[c] = sum;
  }
}

template <typename T>
__global__ void attendKernel(AttentionCall<T> call, T* y, T* most_out, T* sum_out) {
  __shared__ T values[kBlockThreads];
  __shared__ T probabilities[kBlockThreads];
  for (int64_t row = blockIdx.x; row < call.matrices * call.queries; row += gridDim.x) {
    const int64_t matrix = row / call.queries;
    const int64_t query = row % call.queries;
    T most = -std::numeric_limits<T>::infinity();
    for (int64_t key = threadIdx.x; key < call.keys; key += blockDim.x) {
      const T score = call.score(matrix, query, key);
      most = most < score || score != score ? score : most;
    }
    most = maxBlock(most, values);
    T sum = 0;
    for (int64_t key = threadIdx.x; key < call.keys; key += blockDim.x)
      sum += fastExp(call.score(matrix, query, key) - most);
    sum = sumBlock(sum, values);
    if (threadIdx.x == 0 && most_out != nullptr) most_out[row] = most;
    if (threadIdx.x == 0 && sum_out != nullptr) sum_out[row] = sum;
    T* out = y + row * call.value_width;
    const T* from = call.valuesOf(matrix);
    if (call.keys == 0) addRows(probabilities, 0, from, call.value_width, false, out);
    for (int64_t first = 0; first < call.keys; first += blockDim.x) {
      const int64_t count = std::min<int64_t>(blockDim.x, call.keys - first);
      if (threadIdx.x < count)
        probabilities[threadIdx.x] =
            call.dropped(call.probability(call.score(matrix, query, first + threadIdx.x), most, sum), matrix,
                         query, first + threadIdx.x);
      __syncthreads();
      addRows(probabilities, count, from + first * call.value_width, call.value_width, first > 0, out);
      __syncthreads();
    }
  }
}

// The sum of probability times slope over a row.
template <typename T>
__device__ T dotOfRow(const AttentionCall<T>& call, int64_t row, const T* dy, const RowStatistics<T>& rows,
                      T* values) {
  const int64_t matrix = row / call.queries;
  const int64_t query = row % call.queries;
  T dot = 0;
  for (int64_t key = threadIdx.x; key < call.keys; key += blockDim.x)
    dot += call.probability(call.score(matrix, query, key), rows.most[row], rows.sum[row]) *
           call.slope(matrix, query, key, dy);
  return sumBlock(dot, values);
}

// dQ (nullptr: not asked for), and every row's dot.
template <typename T>
__global__ void attentionQueryGradKernel(AttentionCall<T> call, const T* dy, RowStatistics<T> rows, T* dots,
                                         T* dquery) {
  __shared__ T values[kBlockThreads];
  __shared__ T slopes[kBlockThreads];
  for (int64_t row = blockIdx.x; row < call.matrices * call.queries; row += gridDim.x) {
    const int64_t matrix = row / call.queries;
    const int64_t query = row % call.queries;
    const T dot = dotOfRow(call, row, dy, rows, values);
    if (threadIdx.x == 0) dots[row] = dot;
    if (dquery == nullptr) continue;
    T* out = dquery + row * call.width;
    const T* from = call.keysOf(matrix);
    if (call.keys == 0) addRows(slopes, 0, from, call.width, false, out);
    for (int64_t first = 0; first < call.keys; first += blockDim.x) {
      const int64_t count = std::min<int64_t>(blockDim.x, call.keys - first);
      if (threadIdx.x < count) {
        const int64_t key = first + threadIdx.x;
        const T p = call.probability(call.score(matrix, query, key), rows.most[row], rows.sum[row]);
        slopes[threadIdx.x] = call.isMasked(matrix, query, key)
                                  ? T(0)
                                  : p * (call.slope(matrix, query, key, dy) - dot) * *call.inputs.scale;
      }
      __syncthreads();
      addRows(slopes, count, from + first * call.width, call.width, first > 0, out);
      __syncthreads();
    }
  }
}

// dK and dV; nullptr: not asked for. The queries of matrices that share their keys follow each other.
template <typename T>
__global__ void attentionKeyGradKernel(AttentionCall<T> call, const T* dy, RowStatistics<T> rows,
                                       const T* dots, T* dkey, T* dvalue) {
  __shared__ T probabilities[kBlockThreads];
  __shared__ T slopes[kBlockThreads];
  const int64_t rows_of_keys = call.group * call.queries;
  for (int64_t place = blockIdx.x; place < call.matrices / call.group * call.keys; place += gridDim.x) {
    const int64_t key = place % call.keys;
    const int64_t first_row = place / call.keys * rows_of_keys;
    const T* queries = call.inputs.query + first_row * call.width;
    const T* outputs = dy + first_row * call.value_width;
    for (int64_t first = 0; first == 0 || first < rows_of_keys; first += blockDim.x) {
      const int64_t count = std::min<int64_t>(blockDim.x, rows_of_keys - first);
      if (threadIdx.x < count) {
        const int64_t row = first_row + first + threadIdx.x;
        const int64_t matrix = row / call.queries;
        const int64_t query = row % call.queries;
        const T p = call.probability(call.score(matrix, query, key), rows.most[row], rows.sum[row]);
        probabilities[threadIdx.x] = call.dropped(p, matrix, query, key);
        slopes[threadIdx.x] = call.isMasked(matrix, query, key)
                                  ? T(0)
                                  : p * (call.slope(matrix, query, key, dy) - dots[row]) * *call.inputs.scale;
      }
      __syncthreads();
      if (dkey != nullptr)
        addRows(slopes, count, queries + first * call.width, call.width, first > 0,
                dkey + place * call.width);
      if (dvalue != nullptr)
        addRows(probabilities, count, outputs + first * call.value_width, call.value_width, first > 0,
                dvalue + place * call.value_width);
      __syncthreads();
    }
  }
}

template <typename T>
__global__ void attentionScoresGradKernel(AttentionCall<T> call, const T* dy, RowStatistics<T> rows,
                                          T* dscores) {
  __shared__ T values[kBlockThreads];
  for (int64_t row = blockIdx.x; row < call.matrices * call.queries; row += gridDim.x) {
    const int64_t matrix = row / call.queries;
    const int64_t query = row % call.queries;
    const T dot = dotOfRow(call, row, dy, rows, values);
    for (int64_t key = threadIdx.x; key < call.keys; key += blockDim.x) {
      const T p = call.probability(call.score(matrix, query, key), rows.most[row], rows.sum[row]);
      // A bias that is added behind the mask has a slope where the mask hides the product.
      const bool is_hidden = call.bias_first && call.isMasked(matrix, query, key);
      dscores[row * call.keys + key] = is_hidden ? T(0) : p * (call.slope(matrix, query, key, dy) - dot);
    }
  }
}

template <typename T>
void attend(DeviceQueue* queue, const AttentionShape& s, const AttentionInputs<T>& inputs, T* y, T* most,
            T* sum) {
  launch<attendKernel<T>>(aBlockEach(s.matrices * s.queries), dim3(kBlockThreads), streamOf(queue),
                          AttentionCall<T>(s, inputs), y, most, sum);
}

const bool kAttentionKeepsDots = true;

template <typename T>
void attentionGrad(DeviceQueue* queue, const AttentionShape& s, const AttentionInputs<T>& inputs, const T* dy,
                   const RowStatistics<T>& rows, T* dots, const AttentionGradients<T>& gradients) {
  const cudaStream_t stream = streamOf(queue);
  const AttentionCall<T> call(s, inputs);
  launch<attentionQueryGradKernel<T>>(aBlockEach(s.matrices * s.queries), dim3(kBlockThreads), stream, call,
                                      dy, rows, dots, gradients.query);
  if (gradients.key == nullptr && gradients.value == nullptr) return;
  launch<attentionKeyGradKernel<T>>(aBlockEach(s.keyMatrices() * s.keys), dim3(kBlockThreads), stream, call,
                                    dy, rows, static_cast<const T*>(dots), gradients.key, gradients.value);
}

template <typename T>
void attentionScoresGrad(DeviceQueue* queue, const AttentionShape& s, const AttentionInputs<T>& inputs,
                         const T* dy, const RowStatistics<T>& rows, T* dscores) {
  launch<attentionScoresGradKernel<T>>(aBlockEach(s.matrices * s.queries), dim3(kBlockThreads),
                                       streamOf(queue), AttentionCall<T>(s, inputs), dy, rows, dscores);
}

PIPESHARD_ATTENTION_INSTANCES(float)
PIPESHARD_ATTENTION_INSTANCES(double)

}  // namespace pipeshard::kernels
