// What several ranks have of a tensor, reduced on a stream: the arithmetic of collectives, to the bits of
// transport/collectives/reduce.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "ir/base/data_type.h"

namespace pipeshard {

inline constexpr int kMostReducedRanks = 64;

enum class RankReduction : int { kSum, kMax, kMin };

// In the device's memory, or another's that it reads.
struct RankInputs {
  const void* of[kMostReducedRanks];
  int ranks;
};

// output[i] = ((of[0][i] op of[1][i]) op of[2][i]) ...; `output` may be one of them, and else overlaps with
// none. bfloat16 and float16: in float32, and rounded once. False for other types than float32, float64,
// bfloat16, float16, int32 and int64.
bool reduceRanksOnDevice(cudaStream_t stream, DataType type, RankReduction reduction,
                         const RankInputs& inputs, void* output, size_t count);

}  // namespace pipeshard
