#include "runtime/device/elementwise_add.h"

#include <cstdint>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr size_t kParallelElements = 1 << 16;  // below, starting threads costs more than adding

template <typename T>
void addAll(const void* part, void* total, size_t count) {
  const auto* from = static_cast<const T*>(part);
  auto* to = static_cast<T*>(total);
#if !defined(__SANITIZE_THREAD__)  // as in runtime/kernels/base/parallel.h
#pragma omp parallel for simd schedule(static) if (count >= kParallelElements)
#endif
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

void addElements(DataType type, const void* part, void* total, size_t count) {
  switch (type) {
    case DataType::kFloat32: return addAll<float>(part, total, count);
    case DataType::kFloat64: return addAll<double>(part, total, count);
    case DataType::kInt32: return addAll<int32_t>(part, total, count);
    case DataType::kInt64: return addAll<int64_t>(part, total, count);
    default:
      fail(ErrorCode::kBadModel,
           "tensors of type {} cannot be accumulated (float32, float64, int32, int64 can)",
           dataTypeName(type));
  }
}

}  // namespace pipeshard
