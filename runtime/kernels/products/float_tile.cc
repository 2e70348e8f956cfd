#include "runtime/kernels/products/float_tile.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/kernels/products/onednn.h"

namespace pipeshard::kernels {
namespace {

constexpr int64_t kLine = 16;        // floats of a line of a cache
constexpr int64_t kSets = 64;        // of the first cache
constexpr int64_t kDepth = 1024;     // rows that are copied at a time
constexpr int64_t kLeastDepth = 32;  // fewer rows do not drive each other out
constexpr int64_t kWidest = 1024;    // columns that are copied

// Tiles as large as this oneDNN copies itself.
bool isCopiedByOnednn(int64_t m, int64_t n) {
  return 1.0 / static_cast<double>(m) + 1.0 / static_cast<double>(n) < 0.0038;
}

// In how many sets of the cache rows begin.
int64_t setsOf(int64_t leading) {
  return leading % kLine != 0 ? kSets : kSets / std::gcd(leading / kLine, kSets);
}

// Each element of the copy is used so many times.
bool isWorthACopy(int64_t leading, int64_t columns, int64_t uses) {
  const int64_t sets = setsOf(leading);
  return columns <= kWidest && ((sets <= 2 && uses >= 16) || (sets <= 4 && uses >= 256));
}

// `rows` stored rows. The space grows to what the largest tile of a thread ever needs.
Operand<float> copied(const Operand<float>& from, int64_t rows, int64_t columns, std::vector<float>& space) {
  const int64_t lines = (columns + kLine - 1) / kLine;
  const int64_t leading = (lines | 1) * kLine;
  if (std::ssize(space) < rows * leading) space.resize(rows * leading);
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(from.data + row * from.leading, columns, space.data() + row * leading);
  return {space.data(), leading, from.transposed};
}

// Behind `rows` steps along k.
Operand<float> behind(const Operand<float>& operand, bool walks_rows, int64_t rows) {
  return {operand.data + (walks_rows ? rows * operand.leading : rows), operand.leading, operand.transposed};
}

}  // namespace

void floatTile(int64_t m, int64_t n, int64_t k, float alpha, Operand<float> a, Operand<float> b, float beta,
               float* c, int64_t ldc) {
  const bool may_copy = k >= kLeastDepth && !isCopiedByOnednn(m, n);
  const bool copies_a = may_copy && a.transposed && isWorthACopy(a.leading, m, n);
  const bool copies_b = may_copy && !b.transposed && isWorthACopy(b.leading, n, m);
  const int64_t parts = copies_a || copies_b ? (k + kDepth - 1) / kDepth : 1;
  thread_local std::vector<float> space_a, space_b;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = k * part / parts, depth = k * (part + 1) / parts - first;
    Operand<float> left = behind(a, a.transposed, first), right = behind(b, !b.transposed, first);
    if (copies_a) left = copied(left, depth, m, space_a);
    if (copies_b) right = copied(right, depth, n, space_b);
    onednnGemm(left.transposed, right.transposed, m, n, depth, alpha, left.data, left.leading, right.data,
               right.leading, part == 0 ? beta : 1, c, ldc);
  }
}

}  // namespace pipeshard::kernels
