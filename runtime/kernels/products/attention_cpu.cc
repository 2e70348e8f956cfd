// A block of queries at a time: what is in memory of the scores is a block of rows per thread
// (blockOfQueries). A block's rows are one thread's. So are, for gradients of keys and values, all that have
// these keys, unless there are so few that threads would have nothing to do (GradientPass).
#include "runtime/kernels/products/attention.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <omp.h>

#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/base/vector_math.h"
#include "runtime/kernels/products/gemm.h"
#include "runtime/kernels/products/visible_keys.h"

namespace pipeshard::kernels {
namespace {

// Rows of scores that a thread works on: some hundred kilobytes of them, so that they stay in its cache.
int64_t blockOfQueries(const AttentionShape& shape) {
  constexpr int64_t kScores = int64_t{1} << 16;
  const int64_t rows = std::clamp<int64_t>(kScores / std::max<int64_t>(1, shape.keys) / 16 * 16, 16, 64);
  return std::min(rows, shape.queries);
}

// Less than a second thread takes to wake.
bool isSmall(const AttentionShape& shape) {
  constexpr int64_t kSmallWork = int64_t{1} << 20;
  return shape.matrices * shape.queries * shape.keys * (shape.width + shape.value_width) <= kSmallWork;
}

// Rows [first, first + count) of a matrix, and the keys that they see.
struct Block {
  int64_t matrix, first, count;
  KeyRange keys;
};

// body(matrix, first row)
template <typename Body>
void forQueryBlocks(const AttentionShape& shape, const Body& body) {
  if (shape.queries == 0) return;
  const int64_t rows = blockOfQueries(shape);
  const int64_t blocks = (shape.queries + rows - 1) / rows;
  forEachBlock(shape.matrices * blocks, !isSmall(shape),
               [&](int64_t index) { body(index / blocks, index % blocks * rows); });
}

// Memory of this thread, of the size that it needed most.
template <typename T, int kWhich>
T* scratch(int64_t elements) {
  thread_local std::vector<T> memory;
  if (std::ssize(memory) < elements) memory.resize(elements);
  return memory.data();
}

template <typename T>
struct Matrix {
  const T* data;
  int64_t columns;
  bool transposed = false;
};

// c [m, n] = a b + beta c, where the inner size may be 0.
template <typename T>
void multiplyBlock(int64_t m, int64_t n, int64_t k, Matrix<T> a, Matrix<T> b, double beta, T* c) {
  if (m == 0 || n == 0) return;
  if (k > 0) {
    return gemmOnThisThread(
        {.transpose_a = a.transposed, .transpose_b = b.transposed, .m = m, .n = n, .k = k}, a.data, a.columns,
        b.data, b.columns, beta, c, n);
  }
  if (beta == 0) std::fill_n(c, m * n, T(0));
}

// One row's overlays.
template <typename T>
struct RowOverlays {
  const bool* mask;
  int64_t mask_stride;
  T fill;
  const T* bias;
  int64_t bias_stride;
  const T* second_bias;
  int64_t second_bias_stride;
  bool bias_first;
};

template <typename T>
RowOverlays<T> overlaysOf(const AttentionShape& shape, const AttentionInputs<T>& inputs, int64_t matrix,
                          int64_t row, int64_t key) {
  const auto at = [&](const ScoreOverlay& overlay) {
    return overlay.offsets[matrix] + row * overlay.row_stride + key * overlay.column_stride;
  };
  return {shape.mask.offsets.empty() ? nullptr : inputs.mask + at(shape.mask),
          shape.mask.column_stride,
          inputs.fill == nullptr ? T(0) : *inputs.fill,
          shape.bias.offsets.empty() ? nullptr : inputs.bias + at(shape.bias),
          shape.bias.column_stride,
          shape.second_bias.offsets.empty() ? nullptr : inputs.second_bias + at(shape.second_bias),
          shape.second_bias.column_stride,
          shape.bias_first};
}

template <typename T>
struct ScoreRow {
  PIPESHARD_INLINE static void addBiases(T* scores, int64_t keys, const RowOverlays<T>& over) {
    addBias(scores, keys, over.bias, over.bias_stride);
    addBias(scores, keys, over.second_bias, over.second_bias_stride);
  }
  PIPESHARD_INLINE static void addBias(T* scores, int64_t keys, const T* bias, int64_t stride) {
    if (bias == nullptr) return;
    if (stride == 0) {
#pragma omp simd
      for (int64_t i = 0; i < keys; ++i) scores[i] += bias[0];
    } else {
#pragma omp simd
      for (int64_t i = 0; i < keys; ++i) scores[i] += bias[i];
    }
  }
  // From products to scores.
  PIPESHARD_INLINE static void run(T* scores, int64_t keys, T scale, RowOverlays<T> over) {
#pragma omp simd
    for (int64_t i = 0; i < keys; ++i) scores[i] *= scale;
    if (over.bias_first) addBiases(scores, keys, over);
    if (over.mask != nullptr) {
      for (int64_t i = 0; i < keys; ++i) scores[i] = over.mask[i * over.mask_stride] ? scores[i] : over.fill;
    }
    if (!over.bias_first) addBiases(scores, keys, over);
  }
};

// exp(x) of scores that are at most 0: 0 where a mask of, say, -100 would leave a denormal number, which
// slows the products behind it tenfold.
PIPESHARD_INLINE double expOfScore(double x) { return fastExp(x); }
PIPESHARD_INLINE float expOfScore(float x) {
  constexpr float kVanishing = -80.0F;  // 2e-35 of the largest
  return x < kVanishing ? 0.0F : fastExp(x);
}

// From scores to probabilities, and what a row keeps.
template <typename T>
struct SoftmaxRowOf {
  PIPESHARD_INLINE static void run(T* scores, int64_t keys, bool nan_to_zero, T* most_out, T* sum_out) {
    const T most = maxOf<T>(keys, -std::numeric_limits<T>::infinity(),
                            [scores](int64_t i) PIPESHARD_LAMBDA_INLINE { return scores[i]; });
    const T sum = sumOf<T>(keys, [scores, most](int64_t i) PIPESHARD_LAMBDA_INLINE {
      return scores[i] = expOfScore(scores[i] - most);
    });
    scaleBy(scores, keys, T(1) / sum, nan_to_zero);
    if (most_out != nullptr) *most_out = most;
    if (sum_out != nullptr) *sum_out = sum;
  }
  PIPESHARD_INLINE static void scaleBy(T* p, int64_t keys, T scale, bool nan_to_zero) {
#pragma omp simd
    for (int64_t i = 0; i < keys; ++i) p[i] *= scale;
    if (!nan_to_zero) return;
#pragma omp simd
    for (int64_t i = 0; i < keys; ++i) p[i] = p[i] != p[i] ? T(0) : p[i];
  }
};

template <typename T>
struct ProbabilityRow {
  PIPESHARD_INLINE static void run(T* scores, int64_t keys, bool nan_to_zero, T most, T sum) {
#pragma omp simd
    for (int64_t i = 0; i < keys; ++i) scores[i] = expOfScore(scores[i] - most);
    SoftmaxRowOf<T>::scaleBy(scores, keys, T(1) / sum, nan_to_zero);
  }
};

template <typename T>
struct DropRow {
  PIPESHARD_INLINE static void run(T* x, int64_t keys, const bool* keep, int64_t stride, T factor) {
    for (int64_t i = 0; i < keys; ++i) x[i] = keep[i * stride] ? x[i] * factor : T(0);
  }
};

// slopes: in of probabilities, out of scores. Where the mask has taken a score's place none arrives, if
// `masked`.
template <typename T>
struct SlopeRow {
  PIPESHARD_INLINE static void run(const T* p, T* slopes, int64_t keys, T scale, const bool* mask,
                                   int64_t mask_stride) {
    const T dot = sumOf<T>(keys, [p, slopes](int64_t i) PIPESHARD_LAMBDA_INLINE { return p[i] * slopes[i]; });
#pragma omp simd
    for (int64_t i = 0; i < keys; ++i) slopes[i] = p[i] * (slopes[i] - dot) * scale;
    if (mask == nullptr) return;
    for (int64_t i = 0; i < keys; ++i) slopes[i] = mask[i * mask_stride] ? slopes[i] : T(0);
  }
};

// What a block reads: its queries, and the keys and values that it sees.
template <typename T>
struct BlockInputs {
  const T *query, *key, *value;
};

template <typename T>
BlockInputs<T> inputsOf(const AttentionShape& s, const AttentionInputs<T>& inputs, const Block& block) {
  const int64_t key = block.matrix / s.group * s.keys + block.keys.begin;
  return {inputs.query + (block.matrix * s.queries + block.first) * s.width, inputs.key + key * s.width,
          inputs.value + key * s.value_width};
}

template <typename T>
void writeScores(const AttentionShape& s, const AttentionInputs<T>& inputs, const Block& block, T* scores) {
  const BlockInputs<T> in = inputsOf(s, inputs, block);
  const int64_t keys = block.keys.size();
  multiplyBlock<T>(block.count, keys, s.width, {in.query, s.width}, {in.key, s.width, true}, 0, scores);
  for (int64_t row = 0; row < block.count; ++row)
    runVectorised<ScoreRow<T>>(scores + row * keys, keys, *inputs.scale,
                               overlaysOf(s, inputs, block.matrix, block.first + row, block.keys.begin));
}

// Row `row` of the block: of its probabilities, or of their slopes.
template <typename T>
void dropRow(const AttentionShape& s, const AttentionInputs<T>& inputs, const Block& block, int64_t row,
             T* x) {
  if (inputs.keep == nullptr) return;
  const bool* keep = inputs.keep + s.keep.offsets[block.matrix] + (block.first + row) * s.keep.row_stride +
                     block.keys.begin * s.keep.column_stride;
  runVectorised<DropRow<T>>(x, block.keys.size(), keep, s.keep.column_stride, *inputs.factor);
}

// Did the rows see what hides the keys that the block left out?
template <typename T>
bool areNearby(const T* most, int64_t rows) {
  return std::all_of(most, most + rows,
                     [](T x) { return x > T(kNearby) && x < std::numeric_limits<T>::infinity(); });
}

template <typename T>
void attendBlock(const AttentionShape& s, const AttentionInputs<T>& inputs, const Block& block, T* y, T* most,
                 T* sum) {
  const int64_t keys = block.keys.size();
  T* scores = scratch<T, 0>(block.count * keys);
  T* statistics = scratch<T, 2>(2 * block.count);
  writeScores(s, inputs, block, scores);
  for (int64_t row = 0; row < block.count; ++row) {
    runVectorised<SoftmaxRowOf<T>>(scores + row * keys, keys, s.nan_to_zero, statistics + row,
                                   statistics + block.count + row);
  }
  if (keys < s.keys && !areNearby(statistics, block.count)) {
    Block whole = block;
    whole.keys = {0, s.keys};
    return attendBlock(s, inputs, whole, y, most, sum);
  }
  for (int64_t row = 0; row < block.count; ++row) dropRow(s, inputs, block, row, scores + row * keys);
  const int64_t start = block.matrix * s.queries + block.first;
  if (most != nullptr) std::copy_n(statistics, block.count, most + start);
  if (sum != nullptr) std::copy_n(statistics + block.count, block.count, sum + start);
  multiplyBlock<T>(block.count, s.value_width, keys, {scores, keys},
                   {inputsOf(s, inputs, block).value, s.value_width}, 0, y + start * s.value_width);
}

template <typename T>
struct BlockSlopes {
  T* probabilities;  // what values are multiplied by
  T* scores;
};

// Of the keys that the block sees: the slopes of the scores times `scale`; of the products Q K^T, or,
// `of_bias`, of where the bias is added.
template <typename T>
void writeSlopes(const AttentionShape& s, const AttentionInputs<T>& inputs, const Block& block, const T* dy,
                 const RowStatistics<T>& rows, T scale, bool of_bias, const BlockSlopes<T>& to) {
  const int64_t keys = block.keys.size();
  writeScores(s, inputs, block, to.probabilities);
  const int64_t start = block.matrix * s.queries + block.first;
  multiplyBlock<T>(block.count, keys, s.value_width, {dy + start * s.value_width, s.value_width},
                   {inputsOf(s, inputs, block).value, s.value_width, true}, 0, to.scores);
  for (int64_t row = 0; row < block.count; ++row) {
    T* p = to.probabilities + row * keys;
    runVectorised<ProbabilityRow<T>>(p, keys, s.nan_to_zero, rows.most[start + row], rows.sum[start + row]);
    dropRow(s, inputs, block, row, to.scores + row * keys);
    const RowOverlays<T> over = overlaysOf(s, inputs, block.matrix, block.first + row, block.keys.begin);
    const bool behind_the_mask = of_bias && !s.bias_first;
    runVectorised<SlopeRow<T>>(static_cast<const T*>(p), to.scores + row * keys, keys, scale,
                               behind_the_mask ? nullptr : over.mask, over.mask_stride);
    dropRow(s, inputs, block, row, p);
  }
}

template <typename T>
Block gradientBlock(const AttentionShape& s, const VisibleKeys<T>& visible, int64_t matrix, int64_t first,
                    const RowStatistics<T>& rows) {
  Block block{matrix, first, std::min(blockOfQueries(s), s.queries - first), {0, s.keys}};
  if (areNearby(rows.most + matrix * s.queries + first, block.count))
    block.keys = visible.of(matrix, first, block.count);
  return block;
}

template <typename T>
void clearKeyGradients(const AttentionShape& s, const AttentionGradients<T>& gradients, int64_t first,
                       int64_t count) {
  const int64_t keys = first * s.keys, cleared = count * s.keys;
  if (gradients.key != nullptr) std::fill_n(gradients.key + keys * s.width, cleared * s.width, T(0));
  if (gradients.value != nullptr)
    std::fill_n(gradients.value + keys * s.value_width, cleared * s.value_width, T(0));
}

// Blocks of queries follow each other, matrix after matrix. Each adds to the gradients of its keys and
// values, some keys at a time (kKeysOfAPart): the same products in the same order, whoever computes them.
template <typename T>
class GradientPass {
 public:
  GradientPass(const AttentionShape& s, const AttentionInputs<T>& inputs, const T* dy,
               const RowStatistics<T>& rows, const AttentionGradients<T>& gradients)
      : s_(s),
        inputs_(inputs),
        dy_(dy),
        rows_(rows),
        gradients_(gradients),
        visible_(s, inputs),
        block_rows_(blockOfQueries(s)),
        blocks_((s.queries + block_rows_ - 1) / block_rows_ * s.group) {}

  void run() {
    if (!isSmall(s_) && leavesThreadsIdle()) return shareBlocks();
    forEachBlock(s_.keyMatrices(), !isSmall(s_), [&](int64_t matrix) {
      clearKeyGradients(s_, gradients_, matrix, 1);
      for (int64_t i = matrix * blocks_; i < (matrix + 1) * blocks_; ++i) {
        const Block block = blockAt(i);
        const int64_t elements = block.count * block.keys.size();
        const BlockSlopes<T> slopes{scratch<T, 0>(elements), scratch<T, 1>(elements)};
        differentiate(block, slopes);
        for (int64_t part = 0; part < parts(); ++part) {
          addToKeys(block, slopes, part);
          addToValues(block, slopes, part);
        }
      }
    });
  }

 private:
  static constexpr int64_t kKeysOfAPart = 256;
  static constexpr int64_t kSharedBlocks = 16;

  // With a thread for the keys of a matrix: more than two of five. (What is shared is read from memory, not
  // from a thread's cache.)
  bool leavesThreadsIdle() const {
    const int64_t threads = omp_get_max_threads(), matrices = s_.keyMatrices();
    const int64_t rounds = (matrices + threads - 1) / threads;
    return 5 * matrices < 3 * rounds * threads;
  }
  int64_t parts() const { return (s_.keys + kKeysOfAPart - 1) / kKeysOfAPart; }
  int64_t keyMatrix(int64_t block) const { return block / blocks_; }
  Block blockAt(int64_t i) const {
    const int64_t of_matrix = blocks_ / s_.group;
    return gradientBlock(s_, visible_, i / of_matrix, i % of_matrix * block_rows_, rows_);
  }

  // Threads share some blocks, whose slopes are kept, and then the keys that these add to.
  void shareBlocks() {
    const int64_t all = s_.keyMatrices() * blocks_, elements = block_rows_ * s_.keys;
    T* memory = scratch<T, 3>(2 * elements * std::min(kSharedBlocks, all));
    const auto slopesAt = [&](int64_t i) {
      return BlockSlopes<T>{memory + 2 * i * elements, memory + (2 * i + 1) * elements};
    };
    forEachBlock(s_.keyMatrices(), true,
                 [&](int64_t matrix) { clearKeyGradients(s_, gradients_, matrix, 1); });
    std::vector<Block> shared;
    for (int64_t start = 0; start < all; start += kSharedBlocks) {
      shared.resize(std::min(kSharedBlocks, all - start));
      const int64_t count = std::ssize(shared), first = keyMatrix(start);
      forEachBlock(count, true, [&](int64_t i) {
        shared[i] = blockAt(start + i);
        differentiate(shared[i], slopesAt(i));
      });
      const int64_t matrices = keyMatrix(start + count - 1) - first + 1;
      forEachBlock(matrices * parts() * 2, true, [&](int64_t task) {
        const int64_t part = task / 2 % parts();
        for (int64_t i = 0; i < count; ++i) {
          if (keyMatrix(start + i) != first + task / 2 / parts()) continue;
          task % 2 == 0 ? addToKeys(shared[i], slopesAt(i), part) : addToValues(shared[i], slopesAt(i), part);
        }
      });
    }
  }

  void differentiate(const Block& block, const BlockSlopes<T>& slopes) const {
    writeSlopes(s_, inputs_, block, dy_, rows_, *inputs_.scale, false, slopes);
    if (gradients_.query == nullptr) return;
    const int64_t keys = block.keys.size();
    multiplyBlock<T>(block.count, s_.width, keys, {slopes.scores, keys},
                     {inputsOf(s_, inputs_, block).key, s_.width}, 0,
                     gradients_.query + (block.matrix * s_.queries + block.first) * s_.width);
  }
  void addToKeys(const Block& block, const BlockSlopes<T>& slopes, int64_t part) const {
    if (gradients_.key == nullptr) return;
    addProduct(block, slopes.scores, inputsOf(s_, inputs_, block).query, s_.width, part, gradients_.key);
  }
  void addToValues(const Block& block, const BlockSlopes<T>& slopes, int64_t part) const {
    if (gradients_.value == nullptr) return;
    const T* dy = dy_ + (block.matrix * s_.queries + block.first) * s_.value_width;
    addProduct(block, slopes.probabilities, dy, s_.value_width, part, gradients_.value);
  }
  // Of the block's [queries, keys], transposed, and its [queries, width], for the keys of a part.
  void addProduct(const Block& block, const T* of_keys, const T* of_queries, int64_t width, int64_t part,
                  T* gradient) const {
    const int64_t begin = std::max(block.keys.begin, part * kKeysOfAPart);
    const int64_t end = std::min(block.keys.end, (part + 1) * kKeysOfAPart);
    if (begin >= end) return;
    multiplyBlock<T>(end - begin, width, block.count,
                     {of_keys + begin - block.keys.begin, block.keys.size(), true}, {of_queries, width}, 1,
                     gradient + (block.matrix / s_.group * s_.keys + begin) * width);
  }

  const AttentionShape& s_;
  const AttentionInputs<T>& inputs_;
  const T* dy_;
  const RowStatistics<T>& rows_;
  const AttentionGradients<T>& gradients_;
  const VisibleKeys<T> visible_;
  const int64_t block_rows_;
  const int64_t blocks_;  // for the keys of one matrix
};

}  // namespace

template <typename T>
void attend(DeviceQueue*, const AttentionShape& s, const AttentionInputs<T>& inputs, T* y, T* most, T* sum) {
  const VisibleKeys<T> visible(s, inputs);
  forQueryBlocks(s, [&](int64_t matrix, int64_t first) {
    const int64_t count = std::min(blockOfQueries(s), s.queries - first);
    attendBlock(s, inputs, Block{matrix, first, count, visible.of(matrix, first, count)}, y, most, sum);
  });
}

const bool kAttentionKeepsDots = false;

template <typename T>
void attentionGrad(DeviceQueue*, const AttentionShape& s, const AttentionInputs<T>& inputs, const T* dy,
                   const RowStatistics<T>& rows, T*, const AttentionGradients<T>& gradients) {
  if (s.queries == 0) return clearKeyGradients(s, gradients, 0, s.keyMatrices());
  GradientPass<T>(s, inputs, dy, rows, gradients).run();
}

template <typename T>
void attentionScoresGrad(DeviceQueue*, const AttentionShape& s, const AttentionInputs<T>& inputs, const T* dy,
                         const RowStatistics<T>& rows, T* dscores) {
  const VisibleKeys<T> visible(s, inputs);
  forQueryBlocks(s, [&](int64_t matrix, int64_t first) {
    const Block block = gradientBlock(s, visible, matrix, first, rows);
    const int64_t keys = block.keys.size();
    const BlockSlopes<T> slopes{scratch<T, 0>(block.count * keys), scratch<T, 1>(block.count * keys)};
    writeSlopes(s, inputs, block, dy, rows, T(1), true, slopes);
    for (int64_t row = 0; row < block.count; ++row) {
      T* out = dscores + (matrix * s.queries + first + row) * s.keys;
      std::fill_n(out, s.keys, T(0));
      std::copy_n(slopes.scores + row * keys, keys, out + block.keys.begin);
    }
  });
}

PIPESHARD_ATTENTION_INSTANCES(float)
PIPESHARD_ATTENTION_INSTANCES(double)

}  // namespace pipeshard::kernels
