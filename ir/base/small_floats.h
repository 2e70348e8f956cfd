// Floating-point formats of 4 and 8 bits, as ONNX has them (OCP and IEEE P3109 drafts; Micikevicius et al.
// 2022, Noune et al. 2022), and the powers of two that scale blocks of them (OCP Microscaling formats, 2023).
#pragma once

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

}  // namespace pipeshard
