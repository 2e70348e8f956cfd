// Kernels for element types that an operator has no kernel for: its inputs are widened, its outputs narrowed.
//
//   Add of float16  ->  Cast to float32, Add of float32, Cast to float16: each rounded once
//
// Narrow floats (float16, bfloat16, float8 and float4) become float32. Integers of other types than int64
// become int64, whose sums, products and shifts are the narrower type's but for a wrap; where there is no
// int64 kernel (a MaxPool) they become float64, which holds them exactly up to 2^53.
// A device widens what it can convert: a GPU float16 and bfloat16 alone.
#pragma once

#include <memory>

#include "ir/base/small_floats.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard::kernels {

// nullptr where nothing can be widened, or there is no kernel for the wide types either. Errors: as the
// factory, but for types that it refuses.
std::unique_ptr<Kernel> makeWideningKernel(const KernelSpec& spec, const KernelFactory& factory);

// What the device converts, as convertElements (ir/base/convert.h) does: defined once for each device, beside
// the loops of Cast (elementwise/conversion_*).
bool canConvert(DataType from, DataType to);
void convertTensor(DeviceQueue* queue, DataType from_type, const void* from, DataType to_type, void* to,
                   int64_t count, SmallFloatRounding rounding = {});

}  // namespace pipeshard::kernels
