// Floating-point formats of 4 and 8 bits, as ONNX has them (OCP and IEEE P3109 drafts; Micikevicius et al.
// 2022, Noune et al. 2022), and the powers of two that scale blocks of them (OCP Microscaling formats, 2023);
// float16 and bfloat16.
#pragma once

#include <bit>
#include <cstdint>

#include "ir/base/data_type.h"

namespace pipeshard {

// float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float4_e2m1, float8_e8m0.
bool isSmallFloat(DataType type);

// The number that a code stands for. A code of 4 bits is in the low half of its byte.
double smallFloatValue(DataType type, uint8_t code);

// To which power of two a number between two of them goes. kNearest: of two equally near ones to the larger.
enum class PowerRounding : uint8_t { kUp, kDown, kNearest };

struct SmallFloatRounding {
  bool saturate = true;
  PowerRounding power = PowerRounding::kUp;  // of float8_e8m0
};

// The code of the nearest number, of two equally near ones that with an even code. A number beyond the
// largest one, and infinity, becomes the largest if `saturate`, else infinity or, in formats without, NaN.
// The format of 4 bits has neither and always saturates; NaN is -0 there.
// float8_e8m0 has the powers of two from 2^-127 to 2^127, and NaN: the sign is dropped, and numbers below the
// smallest one, and 0, become that one if `saturate`, else NaN.
uint8_t smallFloatCode(DataType type, double value, SmallFloatRounding rounding);

// Elements of float16 and bfloat16 as memory has them. What becomes of them is constexpr, so that kernels of
// any device compute it.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

constexpr float widen(Bfloat value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

constexpr float widen(Half value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000) << 16;
  const uint32_t exponent = value.bits >> 10 & 0x1f;
  const uint32_t mantissa = value.bits & 0x3ff;
  uint32_t bits = 0;
  if (exponent == 0x1f) {  // infinity, or a NaN that is quiet
    bits = 0x7f800000 | mantissa << 13 | (mantissa == 0 ? 0 : 0x400000);
  } else if (exponent == 0) {
    bits = std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  } else {
    bits = (exponent + 112) << 23 | mantissa << 13;
  }
  return std::bit_cast<float>(sign | bits);
}

// The nearest one, of two equally near ones the even one.
constexpr Bfloat narrowToBfloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

constexpr Half narrowToHalf(double value) {
  constexpr uint64_t kOne = 1;
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 48 & 0x8000);
  const uint64_t magnitude = bits & ~(kOne << 63);
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (magnitude > 0x7ff0000000000000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (exponent > 15) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (exponent < -25) return {sign};  // less than half of the smallest one
  const uint64_t mantissa = (magnitude & ((kOne << 52) - 1)) | kOne << 52;
  const int dropped = exponent < -14 ? 28 - exponent : 42;  // bits
  const uint64_t rest = mantissa & ((kOne << dropped) - 1);
  const uint64_t half = kOne << (dropped - 1);
  uint64_t kept = mantissa >> dropped;
  if (rest > half || (rest == half && (kept & 1) != 0)) ++kept;
  // Added, not or-ed: a carry of the rounding moves into the exponent.
  if (exponent >= -14) kept += static_cast<uint64_t>(exponent + 14) << 10;
  return {static_cast<uint16_t>(sign | kept)};
}

}  // namespace pipeshard
