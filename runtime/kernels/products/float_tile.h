// A tile of a float32 product, on the calling thread: oneDNN's, on operands that do not fight over a cache.
//
// oneDNN reads an operand whose rows are walked along k (A transposed, B not) where it lies, unless the tile
// is large. Rows of a power of two, or of 3072, floats are a multiple of 4096 bytes apart: all of them belong
// into one set of the first cache, which has room for eight lines. Such a product takes twice its time:
//
//   [512,768] x [768,3072]               80 GFLOP/s, and 154 of rows that were copied first
//   [512,768] x [768,2304]              133, and 149 (four sets)
//   [512,3072] x [768,3072] transposed  158, no copy
// (AMD EPYC without AVX-512, two threads.)
// So rows are copied an odd number of lines apart where that pays: k rows of a tile, of at most kDepth at a
// time.
#pragma once

#include <cstdint>

namespace pipeshard::kernels {

// Part of a row-major matrix, as stored or transposed.
template <typename T>
struct Operand {
  const T* data;
  int64_t leading;  // elements between stored rows
  bool transposed;
};

// C[m,n] (rows `ldc` apart) = alpha * op(A) * op(B) + beta * C. beta == 0: C need not be initialised. k > 0.
// Bits depend on the sizes, strides and the processor alone. Takes up to 9 MiB of memory of the thread's own.
void floatTile(int64_t m, int64_t n, int64_t k, float alpha, Operand<float> a, Operand<float> b, float beta,
               float* c, int64_t ldc);

}  // namespace pipeshard::kernels
