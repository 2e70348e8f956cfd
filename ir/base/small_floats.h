// Floating-point formats of 4 and 8 bits, as ONNX has them (OCP and IEEE P3109 drafts; Micikevicius et al.
// 2022, Noune et al. 2022).
#pragma once

#include <cstdint>

#include "ir/base/data_type.h"

namespace pipeshard {

// float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float4_e2m1.
bool isSmallFloat(DataType type);

// The number that a code stands for. A code of 4 bits is in the low half of its byte.
double smallFloatValue(DataType type, uint8_t code);

// The code of the nearest number, of two equally near ones that with an even code. A number beyond the
// largest one, and infinity, becomes the largest if `saturate`, else infinity or, in formats without, NaN.
// The format of 4 bits has neither and always saturates; NaN is -0 there.
uint8_t smallFloatCode(DataType type, double value, bool saturate);

}  // namespace pipeshard
