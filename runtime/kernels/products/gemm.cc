#include "runtime/kernels/products/gemm.h"

#include <algorithm>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include "ir/base/convert.h"
#include "runtime/kernels/base/one_thread.h"
#include "runtime/kernels/base/parallel.h"
#include "runtime/kernels/base/simd.h"
#include "runtime/kernels/products/float_tile.h"
#include "runtime/kernels/products/onednn.h"

namespace pipeshard::kernels {
namespace {

// One thread: C[m,n] (rows `ldc` apart) = alpha * op(A) * op(B) + beta * C.
void tileGemm(int64_t m, int64_t n, int64_t k, double alpha, Operand<float> a, Operand<float> b, double beta,
              float* c, int64_t ldc) {
  floatTile(m, n, k, static_cast<float>(alpha), a, b, static_cast<float>(beta), c, ldc);
}

void tileGemm(int64_t m, int64_t n, int64_t k, double alpha, Operand<double> a, Operand<double> b,
              double beta, double* c, int64_t ldc) {
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Stride = Eigen::OuterStride<>;
  using Input = Eigen::Map<const Matrix, 0, Stride>;
  Eigen::Map<Matrix, 0, Stride> out(c, m, n, Stride(ldc));
  const Input left(a.data, a.transposed ? k : m, a.transposed ? m : k, Stride(a.leading));
  const Input right(b.data, b.transposed ? n : k, b.transposed ? k : n, Stride(b.leading));
  if (beta == 0)
    out.setZero();
  else if (beta != 1)
    out *= beta;
  if (a.transposed && b.transposed)
    out.noalias() += alpha * left.transpose() * right.transpose();
  else if (a.transposed)
    out.noalias() += alpha * left.transpose() * right;
  else if (b.transposed)
    out.noalias() += alpha * left * right.transpose();
  else
    out.noalias() += alpha * left * right;
}

template <typename T>
void tileGemm(int64_t m, int64_t n, int64_t k, double alpha, Operand<T> a, Operand<T> b, double beta, T* c,
              int64_t ldc) {
  using U = std::make_unsigned_t<T>;
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      U sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        const T left = a.transposed ? a.data[l * a.leading + i] : a.data[i * a.leading + l];
        const T right = b.transposed ? b.data[j * b.leading + l] : b.data[l * b.leading + j];
        sum += static_cast<U>(left) * static_cast<U>(right);
      }
      U* out = reinterpret_cast<U*>(c + i * ldc + j);
      *out = static_cast<U>(static_cast<T>(alpha)) * sum +
             (beta == 0 ? U(0) : static_cast<U>(static_cast<T>(beta)) * *out);
    }
  }
}

// Tile sizes: small enough to feed many threads, large enough that packing the operands costs little.
struct Tiling {
  int64_t rows = 1;
  int64_t columns = 1;
};

// A product of one tile that is much work, as tiles that a few threads can share, however many there are: the
// same tiles give the same bits. (Left whole, oneDNN would share out its sums, by how many threads there
// are.)
Tiling withEnoughTiles(const GemmShape& shape, int64_t batch, Tiling tile, int64_t small_work) {
  constexpr int64_t kEnough = 4;
  const auto parts = [](int64_t size, int64_t part) { return (size + part - 1) / part; };
  if (batch > 1 || tile.rows < shape.m || tile.columns < shape.n) return tile;
  while (parts(shape.m, tile.rows) * parts(shape.n, tile.columns) < kEnough &&
         tile.rows * tile.columns * shape.k > 2 * small_work) {
    int64_t& longer = tile.rows > tile.columns ? tile.rows : tile.columns;
    if (longer <= 16) break;
    longer = (longer / 2 + 15) / 16 * 16;
  }
  return tile;
}

Tiling chooseTiles(const GemmShape& shape, int64_t batch) {
  const int64_t edge = shape.m * shape.n >= (int64_t{1} << 24) ? 1024 : 512;
  // multiply-adds that one thread does sooner than a second one wakes
  constexpr int64_t kSmallWork = int64_t{1} << 21;
  if (shape.m * shape.n * std::max<int64_t>(1, shape.k) <= kSmallWork)
    return {std::max<int64_t>(1, shape.m), std::max<int64_t>(1, shape.n)};
  const auto even = [edge](int64_t size) {
    const int64_t parts = (size + edge - 1) / edge;
    const int64_t part = (size + parts - 1) / parts;
    return (part + 15) / 16 * 16;
  };
  return withEnoughTiles(shape, batch, {even(shape.m), even(shape.n)}, kSmallWork);
}

// The tiles of one matrix.
struct Grid {
  Grid(const GemmShape& shape, Tiling tile)
      : tile(tile),
        rows((shape.m + tile.rows - 1) / tile.rows),
        columns((shape.n + tile.columns - 1) / tile.columns) {}
  int64_t size() const { return rows * columns; }
  // Where tile `index` is: first row and column, and how many there are.
  struct Part {
    int64_t i, j, m, n;
  };
  Part part(const GemmShape& shape, int64_t index) const {
    const int64_t i = index / columns % rows * tile.rows;
    const int64_t j = index % columns * tile.columns;
    return {i, j, std::min(tile.rows, shape.m - i), std::min(tile.columns, shape.n - j)};
  }
  Tiling tile;
  int64_t rows;
  int64_t columns;
};

template <typename T>
Operand<T> leftOf(const GemmShape& shape, const T* a, int64_t i) {
  const int64_t lda = shape.transpose_a ? shape.m : shape.k;
  return {a + (shape.transpose_a ? i : i * lda), lda, shape.transpose_a};
}

template <typename T>
Operand<T> rightOf(const GemmShape& shape, const T* b, int64_t j) {
  const int64_t ldb = shape.transpose_b ? shape.k : shape.n;
  return {b + (shape.transpose_b ? j * ldb : j), ldb, shape.transpose_b};
}

template <typename T>
struct AddRow {
  PIPESHARD_INLINE static void run(const T* from, T* to, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
  }
};

// One primitive for each size that a tile has: inner ones, and those at the right and lower edges. oneDNN
// wants whole matrices: a part of one whose rows are not behind each other is copied first.
class NativeBfloat16 : public Bfloat16Product {
 public:
  NativeBfloat16(const GemmShape& shape, int64_t batch, double alpha)
      : shape_(shape),
        batch_(batch),
        alpha_(static_cast<float>(alpha)),
        grid_(shape, chooseTiles(shape, batch)) {}

  // False: this processor has no code for it.
  bool make() {
    for (int64_t index = 0; index < grid_.size(); ++index) {
      const auto [i, j, m, n] = grid_.part(shape_, index);
      std::shared_ptr<const OnednnBfloat16Gemm>& made = products_[{m, n}];
      if (made == nullptr)
        made = OnednnBfloat16Gemm::create(shape_.transpose_a, shape_.transpose_b, m, n, shape_.k);
      if (made == nullptr) return false;
      scratch_bytes_ = std::max(scratch_bytes_, made->scratchBytes());
    }
    return true;
  }

  void run(const uint16_t* a, const int64_t* a_offsets, const uint16_t* b, const int64_t* b_offsets,
           const Result& result) const override {
    forEachBlock(batch_ * grid_.size(), true, [&](int64_t index) {
      const OneThread one_thread;
      const int64_t matrix = index / grid_.size();
      const auto [i, j, m, n] = grid_.part(shape_, index);
      // They grow to what the largest tile that a thread ever has needs.
      thread_local std::vector<uint16_t> left, right;
      thread_local std::vector<std::byte> scratch;
      thread_local std::vector<float> sums;
      if (std::ssize(sums) < m * n) sums.resize(m * n);
      const auto tile_a = leftOf(shape_, a + a_offsets[matrix], i);
      const auto tile_b = rightOf(shape_, b + b_offsets[matrix], j);
      const uint16_t* dense_a = tile_a.transposed ? dense(tile_a, m, left) : tile_a.data;
      const uint16_t* dense_b = tile_b.transposed ? tile_b.data : dense(tile_b, n, right);
      const int64_t at = matrix * shape_.m * shape_.n + i * shape_.n + j;
      const bool direct = result.sums != nullptr && !result.add && alpha_ == 1 && n == shape_.n;
      products_.at({m, n})->run(dense_a, dense_b, direct ? result.sums + at : sums.data(), aligned(scratch));
      if (!direct) finish(result, at, j, m, n, sums.data());
    });
  }

 private:
  void* aligned(std::vector<std::byte>& scratch) const {
    constexpr size_t kAlignment = 64;
    if (scratch.size() < scratch_bytes_ + kAlignment) scratch.resize(scratch_bytes_ + kAlignment);
    void* begin = scratch.data();
    size_t space = scratch.size();
    return std::align(kAlignment, scratch_bytes_, begin, space);
  }

  // k rows of so many elements, behind each other.
  const uint16_t* dense(const Operand<uint16_t>& tile, int64_t columns, std::vector<uint16_t>& space) const {
    if (tile.leading == columns) return tile.data;
    if (std::ssize(space) < shape_.k * columns) space.resize(shape_.k * columns);
    for (int64_t row = 0; row < shape_.k; ++row)
      std::copy_n(tile.data + row * tile.leading, columns, space.data() + row * columns);
    return space.data();
  }

  void finish(const Result& result, int64_t at, int64_t column, int64_t m, int64_t n, float* sums) const {
    thread_local std::vector<float> bias;
    if (result.bias != nullptr) {
      bias.resize(n);
      convertElements(DataType::kBfloat16, result.bias + column, DataType::kFloat32, bias.data(), n);
    }
    for (int64_t row = 0; row < m; ++row, sums += n, at += shape_.n) {
      if (alpha_ != 1) {
        for (int64_t i = 0; i < n; ++i) sums[i] *= alpha_;
      }
      if (result.bias != nullptr)
        runVectorised<AddRow<float>>(static_cast<const float*>(bias.data()), sums, n);
      if (result.rounded != nullptr) {
        convertElements(DataType::kFloat32, sums, DataType::kBfloat16, result.rounded + at, n);
      } else if (result.add) {
        runVectorised<AddRow<float>>(static_cast<const float*>(sums), result.sums + at, n);
      } else {
        std::copy_n(sums, n, result.sums + at);
      }
    }
  }

  const GemmShape shape_;
  const int64_t batch_;
  const float alpha_;
  const Grid grid_;
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<const OnednnBfloat16Gemm>> products_;  // by m and n
  size_t scratch_bytes_ = 0;
};

}  // namespace

template <typename T>
void batchedGemm(const GemmShape& shape, int64_t batch, double alpha, const T* a, const int64_t* a_offsets,
                 const T* b, const int64_t* b_offsets, double beta, T* c) {
  if (shape.m == 0 || shape.n == 0 || batch == 0) return;
  const Grid grid(shape, chooseTiles(shape, batch));
  // Small products are grouped, so that a thread has work for some microseconds.
  const int64_t work = grid.tile.rows * grid.tile.columns * std::max<int64_t>(1, shape.k);
  const int64_t group = std::max<int64_t>(1, (int64_t{1} << 20) / work);
  forBlocks(batch * grid.size(), group, [&](int64_t begin, int64_t end) {
    const OneThread one_thread;  // a loop of one turn is no parallel one
    for (int64_t index = begin; index < end; ++index) {
      const int64_t matrix = index / grid.size();
      const auto [i, j, m, n] = grid.part(shape, index);
      T* out = c + matrix * shape.m * shape.n + i * shape.n + j;
      if (shape.k == 0) {
        for (int64_t row = 0; row < m; ++row)
          for (int64_t column = 0; column < n; ++column)
            out[row * shape.n + column] = beta == 0 ? T(0) : T(beta * out[row * shape.n + column]);
        continue;
      }
      tileGemm(m, n, shape.k, alpha, leftOf(shape, a + a_offsets[matrix], i),
               rightOf(shape, b + b_offsets[matrix], j), beta, out, shape.n);
    }
  });
}

template <typename T>
void addGemm(const GemmShape& shape, double alpha, const T* a, const T* b, T* c) {
  if (shape.m == 0 || shape.n == 0 || shape.k == 0) return;
  const Grid grid(shape, chooseTiles(shape, 1));
  forEachBlock(grid.size(), true, [&](int64_t index) {
    const OneThread one_thread;
    const auto [i, j, m, n] = grid.part(shape, index);
    thread_local std::vector<T> product;  // grows to the largest tile that a thread ever has
    if (std::ssize(product) < m * n) product.resize(m * n);
    tileGemm(m, n, shape.k, alpha, leftOf(shape, a, i), rightOf(shape, b, j), 0, product.data(), n);
    for (int64_t row = 0; row < m; ++row)
      runVectorised<AddRow<T>>(product.data() + row * n, c + (i + row) * shape.n + j, n);
  });
}

std::shared_ptr<const Bfloat16Product> makeBfloat16Product(const GemmShape& shape, int64_t batch,
                                                           double alpha) {
  // multiply-adds that take longer than oneDNN's call
  constexpr int64_t kSmall = int64_t{1} << 18;
  if (shape.m * shape.n * shape.k < kSmall || batch == 0) return nullptr;
  const auto made = std::make_shared<NativeBfloat16>(shape, batch, alpha);
  return made->make() ? made : nullptr;
}

template <typename T>
void gemmOnThisThread(const GemmShape& shape, const T* a, int64_t lda, const T* b, int64_t ldb, double beta,
                      T* c, int64_t ldc) {
  const OneThread one_thread;  // a loop of one turn is no parallel one
  const Operand<T> left{a, lda, shape.transpose_a};
  const Operand<T> right{b, ldb, shape.transpose_b};
  tileGemm(shape.m, shape.n, shape.k, 1, left, right, beta, c, ldc);
}

template void gemmOnThisThread(const GemmShape&, const float*, int64_t, const float*, int64_t, double, float*,
                               int64_t);
template void gemmOnThisThread(const GemmShape&, const double*, int64_t, const double*, int64_t, double,
                               double*, int64_t);

template void addGemm(const GemmShape&, double, const float*, const float*, float*);
template void addGemm(const GemmShape&, double, const double*, const double*, double*);
template void addGemm(const GemmShape&, double, const int32_t*, const int32_t*, int32_t*);
template void addGemm(const GemmShape&, double, const int64_t*, const int64_t*, int64_t*);

template void batchedGemm(const GemmShape&, int64_t, double, const float*, const int64_t*, const float*,
                          const int64_t*, double, float*);
template void batchedGemm(const GemmShape&, int64_t, double, const double*, const int64_t*, const double*,
                          const int64_t*, double, double*);
template void batchedGemm(const GemmShape&, int64_t, double, const int32_t*, const int64_t*, const int32_t*,
                          const int64_t*, double, int32_t*);
template void batchedGemm(const GemmShape&, int64_t, double, const int64_t*, const int64_t*, const int64_t*,
                          const int64_t*, double, int64_t*);

}  // namespace pipeshard::kernels
