// Conversion of tensor elements between types.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ir/base/data_type.h"
#include "ir/base/small_floats.h"

namespace pipeshard {

// Whether convertElements knows the pair: any two of bool, [u]int4..64, float4 and float8 formats, float16,
// bfloat16, float32, float64. Elements of 4 bits are a byte each in memory.
bool isConvertible(DataType from, DataType to);

// to[i] := from[i] for `count` elements; equal types are copied. Floats round to nearest even (float64 to
// bfloat16 by way of float32); an integer that does not fit wraps; a float to an integer truncates, and gives
// the nearest integer of the type when outside of its range; bool is 0 or 1. `rounding`: to float8 formats.
// Neither memory needs to be aligned. Error(kInternal) for a pair
// that is not convertible.
void convertElements(DataType from_type, const void* from, DataType to_type, void* to, size_t count,
                     SmallFloatRounding rounding = {});

// How many finite numbers are no longer finite in `to`, which convertElements made of `from`.
int64_t countBeyond(DataType from_type, const void* from, DataType to_type, const void* to, size_t count);

}  // namespace pipeshard
