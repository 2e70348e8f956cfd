// The CPU's loops over two broadcast operands: y = Op::apply(a, b).
#pragma once

#include "runtime/kernels/base/broadcast.h"
#include "runtime/kernels/base/simd.h"

namespace pipeshard::kernels {

// StepA, StepB: 1 when the operand moves along a row, 0 when it stays.
template <typename Op, typename T, typename U, typename R, int StepA, int StepB>
struct BinaryLoop {
  PIPESHARD_INLINE static void run(const T* a, const U* b, R* y, int64_t count) {
    if constexpr (StepA == 0) {
      const T left = a[0];
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) y[i] = Op::apply(left, b[i * StepB]);
    } else if constexpr (StepB == 0) {
      const U right = b[0];
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) y[i] = Op::apply(a[i], right);
    } else {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) y[i] = Op::apply(a[i], b[i]);
    }
  }
};

// `y` may be `a` or `b` where that operand has as many elements as the output.
template <typename Op, typename T, typename R, typename U = T>
void runBinary(const Broadcast& plan, const T* a, const U* b, R* y) {
  const bool a_moves = plan.inner_strides[0] != 0;
  const bool b_moves = plan.inner_strides[1] != 0;
  forBroadcast(plan, [&](int64_t at, const BroadcastOffsets& from, int64_t count) {
    const T* left = a + from[0];
    const U* right = b + from[1];
    if (a_moves && b_moves)
      runVectorised<BinaryLoop<Op, T, U, R, 1, 1>>(left, right, y + at, count);
    else if (a_moves)
      runVectorised<BinaryLoop<Op, T, U, R, 1, 0>>(left, right, y + at, count);
    else if (b_moves)
      runVectorised<BinaryLoop<Op, T, U, R, 0, 1>>(left, right, y + at, count);
    else
      runVectorised<BinaryLoop<Op, T, U, R, 0, 0>>(left, right, y + at, count);
  });
}

}  // namespace pipeshard::kernels
