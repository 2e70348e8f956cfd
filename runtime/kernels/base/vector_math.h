// Elementary functions that compilers turn into vector code: no branches, no calls for float. The float
// versions are within 2 units in the last place of the exact value (tanh, erf: 3); double goes to the C
// library.
//
// exp: x = n ln 2 + r, |r| <= ln(2) / 2, exp(r) by a minimax polynomial (coefficients as in Cephes' expf).
// tanh: odd minimax polynomial below 0.625 (Cephes' tanhf), 1 - 2 / (exp(2x) + 1) above. erf: odd polynomial
// below 1, 1 - exp(-q(x)) above, both fitted at Chebyshev nodes (relative errors 1.4e-9 of erf, 2.2e-7 of q).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "runtime/kernels/base/simd.h"

namespace pipeshard::kernels {

PIPESHARD_INLINE double fastExp(double x) { return std::exp(x); }
PIPESHARD_INLINE float fastExp(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to the nearest integer
  float limited = x < -104.0f ? -104.0f : x;
  limited = limited > 89.0f ? 89.0f : limited;
  const float shifted = limited * 1.44269504088896341f + kShift;
  const uint32_t n = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(kShift);
  const float whole = shifted - kShift;
  const float r = (limited - whole * 0.693359375f) - whole * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors, so that results below the normal range and just above it come out right.
  const uint32_t half = static_cast<int32_t>(n) >> 1;
  const float scale_a = std::bit_cast<float>((half + 127u) << 23);
  const float scale_b = std::bit_cast<float>((n - half + 127u) << 23);
  return p * scale_a * scale_b;
}

PIPESHARD_INLINE double fastTanh(double x) { return std::tanh(x); }
PIPESHARD_INLINE float fastTanh(float x) {
  const float magnitude = std::fabs(x);
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const float small = p * square * magnitude + magnitude;
  const float large = 1.0f - 2.0f / (fastExp(2.0f * magnitude) + 1.0f);
  const float result = magnitude < 0.625f ? small : large;
  return std::copysign(result, x);
}

template <typename T>
PIPESHARD_INLINE T fastSigmoid(T x) {
  return T(1) / (T(1) + fastExp(-x));
}

PIPESHARD_INLINE double fastErf(double x) { return std::erf(x); }
PIPESHARD_INLINE float fastErf(float x) {
  const float magnitude = std::fabs(x);
  const float square = x * x;
  float p = 7.882497103e-5f;
  p = p * square - 8.018854991e-4f;
  p = p * square + 5.189311942e-3f;
  p = p * square - 2.685432880e-2f;
  p = p * square + 1.128359746e-1f;
  p = p * square - 3.761262690e-1f;
  p = p * square + 1.128379166f;
  const float t = magnitude > 4.0f ? 4.0f : magnitude;
  float q = 1.363312959e-5f;
  q = q * t - 3.234540239e-4f;
  q = q * t + 3.481478809e-3f;
  q = q * t - 2.280460473e-2f;
  q = q * t + 1.037535687e-1f;
  q = q * t + 6.384937282e-1f;
  q = q * t + 1.126368876f;
  q = q * t + 6.221142633e-4f;
  const float result = magnitude < 1.0f ? p * magnitude : 1.0f - fastExp(-q);
  return std::copysign(result, x);
}

}  // namespace pipeshard::kernels
