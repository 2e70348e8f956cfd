#include <type_traits>

#include "ir/base/small_floats.h"
#include "runtime/device/cuda/cuda_reduce_ranks.h"
#include "runtime/kernels/base/cuda_launch.h"

namespace pipeshard {

// What elements are computed in.
template <typename T>
constexpr T widened(T value) {
  return value;
}
constexpr float widened(Half value) { return widen(value); }
constexpr float widened(Bfloat value) { return widen(value); }

template <typename T, typename Wide>
constexpr T narrowed(Wide value) {
  if constexpr (std::is_same_v<T, Half>) {
    return narrowToHalf(value);
  } else if constexpr (std::is_same_v<T, Bfloat>) {
    return narrowToBfloat(value);
  } else {
    return value;
  }
}

// Integers wrap around; a NaN is the largest and the smallest.
template <RankReduction Kind, typename T>
constexpr T reduced(T left, T right) {
  if constexpr (Kind == RankReduction::kMax) {
    return right > left || right != right ? right : left;
  } else if constexpr (Kind == RankReduction::kMin) {
    return right < left || right != right ? right : left;
  } else if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(left) + static_cast<Unsigned>(right));
  } else {
    return left + right;
  }
}

template <typename T, RankReduction Kind>
__global__ void reduceRanksKernel(const __grid_constant__ RankInputs inputs, T* output, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    auto sum = widened(static_cast<const T*>(inputs.of[0])[i]);
    for (int k = 1; k < inputs.ranks; ++k)
      sum = reduced<Kind>(sum, widened(static_cast<const T*>(inputs.of[k])[i]));
    output[i] = narrowed<T>(sum);
  }
}

template <typename T>
bool reduceRanks(cudaStream_t stream, RankReduction kind, const RankInputs& inputs, void* output,
                 size_t count) {
  const auto elements = static_cast<int64_t>(count);
  const dim3 blocks = kernels::blocksFor(elements), threads(kernels::kBlockThreads);
  T* const to = static_cast<T*>(output);
  switch (kind) {
    case RankReduction::kSum:
      kernels::launch<reduceRanksKernel<T, RankReduction::kSum>>(blocks, threads, stream, inputs, to,
                                                                 elements);
      break;
    case RankReduction::kMax:
      kernels::launch<reduceRanksKernel<T, RankReduction::kMax>>(blocks, threads, stream, inputs, to,
                                                                 elements);
      break;
    case RankReduction::kMin:
      kernels::launch<reduceRanksKernel<T, RankReduction::kMin>>(blocks, threads, stream, inputs, to,
                                                                 elements);
      break;
  }
  return true;
}

bool reduceRanksOnDevice(cudaStream_t stream, DataType type, RankReduction reduction,
                         const RankInputs& inputs, void* output, size_t count) {
  switch (type) {
    case DataType::kFloat32: return reduceRanks<float>(stream, reduction, inputs, output, count);
    case DataType::kFloat64: return reduceRanks<double>(stream, reduction, inputs, output, count);
    case DataType::kBfloat16: return reduceRanks<Bfloat>(stream, reduction, inputs, output, count);
    case DataType::kFloat16: return reduceRanks<Half>(stream, reduction, inputs, output, count);
    case DataType::kInt32: return reduceRanks<int32_t>(stream, reduction, inputs, output, count);
    case DataType::kInt64: return reduceRanks<int64_t>(stream, reduction, inputs, output, count);
    default: return false;
  }
}

}  // namespace pipeshard
