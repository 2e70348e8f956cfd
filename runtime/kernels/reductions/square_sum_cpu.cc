// Blocks are fixed and added in order, so that the number of threads does not show.
#include "runtime/kernels/base/lanes.h"
#include "runtime/kernels/reductions/square_sum.h"

namespace pipeshard::kernels {
namespace {

template <typename T>
struct BlockSquares {
  PIPESHARD_INLINE static void run(const T* x, int64_t count, double* sum) {
    *sum = sumOf<double>(count, [x](int64_t i) PIPESHARD_LAMBDA_INLINE {
      const auto wide = static_cast<double>(x[i]);
      return wide * wide;
    });
  }
};

}  // namespace

template <typename T>
void sumSquares(DeviceQueue*, int64_t size, int64_t parts, const int64_t* part, const T* x, double* sums,
                double* total) {
  const SquareShare share(size, parts, *part);
  forEachBlock(share.blocks, true, [&](int64_t b) {
    const int64_t first = b * kBlockElements;
    runVectorised<BlockSquares<T>>(x + share.begin + first, std::min(kBlockElements, share.count - first),
                                   sums + b);
  });
  double sum = 0;
  for (int64_t b = 0; b < share.blocks; ++b) sum += sums[b];
  *total = sum;
}

template void sumSquares(DeviceQueue*, int64_t, int64_t, const int64_t*, const float*, double*, double*);
template void sumSquares(DeviceQueue*, int64_t, int64_t, const int64_t*, const double*, double*, double*);

}  // namespace pipeshard::kernels
