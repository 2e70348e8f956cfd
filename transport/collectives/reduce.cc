#include "transport/collectives/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "ir/base/convert.h"
#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr size_t kTileBytes = 4096;  // with two inputs, a third of a 32 KiB first-level cache

struct Sum {
  template <typename T>
  static T apply(T left, T right) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(left) + static_cast<Unsigned>(right));
    } else {
      return left + right;
    }
  }
};

struct Max {
  template <typename T>
  static T apply(T left, T right) {
    return right > left || right != right ? right : left;
  }
};

struct Min {
  template <typename T>
  static T apply(T left, T right) {
    return right < left || right != right ? right : left;
  }
};

// Through a tile that no input overlaps: the output may be an input, and the loops vectorise without alias
// checks.
template <typename T, typename Operator>
void reduceTyped(std::span<const std::byte* const> inputs, std::byte* output, size_t count) {
  constexpr size_t kTile = kTileBytes / sizeof(T);
  alignas(64) T tile[kTile];
  T* __restrict sum = tile;
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t n = std::min(kTile, count - begin);
    const T* first = reinterpret_cast<const T*>(inputs[0]) + begin;
    const T* second = reinterpret_cast<const T*>(inputs[1]) + begin;
    for (size_t i = 0; i < n; ++i) sum[i] = Operator::apply(first[i], second[i]);
    for (size_t k = 2; k < inputs.size(); ++k) {
      const T* next = reinterpret_cast<const T*>(inputs[k]) + begin;
      for (size_t i = 0; i < n; ++i) sum[i] = Operator::apply(sum[i], next[i]);
    }
    std::memcpy(output + begin * sizeof(T), tile, n * sizeof(T));
  }
}

// bfloat16 and float16: in float32, and rounded once.
template <typename Operator>
void reduceHalves(DataType type, std::span<const std::byte* const> inputs, std::byte* output, size_t count) {
  constexpr size_t kTile = kTileBytes / sizeof(float);
  constexpr size_t kBytes = 2;  // of an element
  alignas(64) float sum[kTile];
  alignas(64) float next[kTile];
  const auto widen = [&](const std::byte* from, float* to, size_t n) {
    convertElements(type, from, DataType::kFloat32, to, n);
  };
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t n = std::min(kTile, count - begin);
    widen(inputs[0] + begin * kBytes, sum, n);
    for (size_t k = 1; k < inputs.size(); ++k) {
      widen(inputs[k] + begin * kBytes, next, n);
      for (size_t i = 0; i < n; ++i) sum[i] = Operator::apply(sum[i], next[i]);
    }
    convertElements(DataType::kFloat32, sum, type, output + begin * kBytes, n);
  }
}

void dispatchHalves(DataType type, Reduction reduction, std::span<const std::byte* const> inputs,
                    std::byte* output, size_t count) {
  switch (reduction) {
    case Reduction::kSum: return reduceHalves<Sum>(type, inputs, output, count);
    case Reduction::kMax: return reduceHalves<Max>(type, inputs, output, count);
    case Reduction::kMin: return reduceHalves<Min>(type, inputs, output, count);
  }
  PIPESHARD_CHECK(false, "reduction {}", static_cast<int>(reduction));
}

template <typename T>
void dispatchReduction(Reduction reduction, std::span<const std::byte* const> inputs, std::byte* output,
                       size_t count) {
  switch (reduction) {
    case Reduction::kSum: return reduceTyped<T, Sum>(inputs, output, count);
    case Reduction::kMax: return reduceTyped<T, Max>(inputs, output, count);
    case Reduction::kMin: return reduceTyped<T, Min>(inputs, output, count);
  }
  PIPESHARD_CHECK(false, "reduction {}", static_cast<int>(reduction));
}

}  // namespace

void checkReducible(DataType type) {
  switch (type) {
    case DataType::kFloat32:
    case DataType::kFloat64:
    case DataType::kBfloat16:
    case DataType::kFloat16:
    case DataType::kInt32:
    case DataType::kInt64: return;
    default:
      fail(ErrorCode::kConfiguration,
           "reductions between workers are done in float32, float64, bfloat16, float16, int32 or int64, not "
           "{}; "
           "convert first",
           dataTypeName(type));
  }
}

void reduceInOrder(DataType type, Reduction reduction, std::span<const std::byte* const> inputs,
                   std::byte* output, size_t count) {
  checkReducible(type);
  PIPESHARD_CHECK(!inputs.empty());
  if (inputs.size() == 1) {
    if (count > 0) std::memmove(output, inputs[0], count * dataTypeSize(type));
    return;
  }
  switch (type) {
    case DataType::kFloat32: return dispatchReduction<float>(reduction, inputs, output, count);
    case DataType::kFloat64: return dispatchReduction<double>(reduction, inputs, output, count);
    case DataType::kBfloat16:
    case DataType::kFloat16: return dispatchHalves(type, reduction, inputs, output, count);
    case DataType::kInt32: return dispatchReduction<int32_t>(reduction, inputs, output, count);
    default: return dispatchReduction<int64_t>(reduction, inputs, output, count);
  }
}

}  // namespace pipeshard
