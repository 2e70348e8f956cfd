// Loops over fixed blocks. How work is cut depends on its size alone, never on the number of threads, so that
// results do not either. Bodies must not throw.
#pragma once

#include <algorithm>
#include <cstdint>
#if defined(__SANITIZE_THREAD__)
#include <thread>
#endif

namespace pipeshard::kernels {

// Elements that one thread should have at least, for work of about a nanosecond per element.
inline constexpr int64_t kBlockElements = 16384;

// body(i) for i in [0, count), on all threads when `parallel`.
template <typename Body>
void forEachBlock(int64_t count, bool parallel, const Body& body) {
  if (!parallel || count <= 1) {  // a team of one thread would have to be made, too
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
#if defined(__SANITIZE_THREAD__)  // it does not see how libgomp orders its threads: two of our own
  const auto everySecond = [&](int64_t first) {
    for (int64_t i = first; i < count; i += 2) body(i);
  };
  std::thread other(everySecond, 1);
  everySecond(0);
  other.join();
#else
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) body(i);
#endif
}

// body(begin, end) for blocks of `block` elements of [0, count).
template <typename Body>
void forBlocks(int64_t count, int64_t block, const Body& body) {
  const int64_t blocks = (count + block - 1) / block;
  forEachBlock(blocks, true, [&](int64_t i) { body(i * block, std::min(count, (i + 1) * block)); });
}

// Rows of `row_elements` elements: body(first_row, last_row) for groups of rows of about kBlockElements
// elements.
template <typename Body>
void forRows(int64_t rows, int64_t row_elements, const Body& body) {
  forBlocks(rows, std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, row_elements)), body);
}

}  // namespace pipeshard::kernels
