// Casts from and to types that have no loops of their own (float16 and the like).
#pragma once

#include "runtime/kernels/base/support.h"

namespace pipeshard::kernels {

// Rounded once; refused on devices that do not know them.
std::unique_ptr<Kernel> makeConversion(const KernelSpec& spec, DataType to);

}  // namespace pipeshard::kernels
