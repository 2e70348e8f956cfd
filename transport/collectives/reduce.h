// Element-by-element reduction of n arrays in a fixed order: the arithmetic of the collectives.
#pragma once

#include <cstddef>
#include <span>

#include "ir/base/data_type.h"
#include "transport/collectives/communicator.h"

namespace pipeshard {

// output[i] = ((inputs[0][i] op inputs[1][i]) op inputs[2][i]) ...: always this order, so the result does not
// depend on who computes it or how the arrays are cut. `output` may be one of the inputs. At least one input;
// all aligned to the type. float32, float64, int32, int64, and bfloat16 and float16, whose results are
// rounded once; integers wrap around; a NaN wins kMax and kMin. Other types: Error(kConfiguration).
void reduceInOrder(DataType type, Reduction reduction, std::span<const std::byte* const> inputs,
                   std::byte* output, size_t count);

// Throws for the types that reduceInOrder does not do.
void checkReducible(DataType type);

}  // namespace pipeshard
