#include "tests/standin/nccl/reduction.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ir/base/small_floats.h"

namespace standin::nccl {
namespace {

pipeshard::Bfloat narrow(pipeshard::Bfloat /*type*/, float value) { return pipeshard::narrowToBfloat(value); }
pipeshard::Half narrow(pipeshard::Half /*type*/, float value) { return pipeshard::narrowToHalf(value); }

// Bfloat or Half, as memory has it; computed in float, and rounded each time.
template <typename Stored>
struct Rounded {
  Stored stored;
  Rounded() = default;
  explicit Rounded(float value) : stored(narrow(Stored{}, value)) {}
  explicit Rounded(size_t value) : Rounded(static_cast<float>(value)) {}
  operator float() const { return pipeshard::widen(stored); }
};

template <typename T>
T combine(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclProd: return static_cast<T>(a * b);
    case ncclMax: return std::max(a, b);
    case ncclMin: return std::min(a, b);
    default: return static_cast<T>(a + b);
  }
}

template <typename T>
std::vector<std::byte> reduceAs(const std::vector<std::vector<std::byte>>& by_rank, ncclRedOp_t op) {
  std::vector<std::byte> result = by_rank[0];
  for (size_t at = 0; at < result.size(); at += sizeof(T)) {
    T total;
    std::memcpy(&total, &result[at], sizeof(T));
    for (size_t rank = 1; rank < by_rank.size(); ++rank) {
      T one;
      std::memcpy(&one, &by_rank[rank][at], sizeof(T));
      total = combine(total, one, op);
    }
    if (op == ncclAvg) total = static_cast<T>(total / static_cast<T>(by_rank.size()));
    std::memcpy(&result[at], &total, sizeof(T));
  }
  return result;
}

}  // namespace

size_t sizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

std::string nameOf(ncclDataType_t type) {
  static const char* const names[] = {"int8",    "uint8",    "int32",      "uint32",
                                      "int64",   "uint64",   "float16",    "float32",
                                      "float64", "bfloat16", "float8e4m3", "float8e5m2"};
  return type >= 0 && type < ncclNumTypes ? names[type] : "type " + std::to_string(type);
}

bool isKnown(ncclRedOp_t op) { return op >= ncclSum && op <= ncclAvg; }

std::string nameOf(ncclRedOp_t op) {
  static const char* const names[] = {"sum", "product", "maximum", "minimum", "average"};
  return isKnown(op) ? names[op] : "operator " + std::to_string(op);
}

std::vector<std::byte> reduce(const std::vector<std::vector<std::byte>>& by_rank, ncclDataType_t type,
                              ncclRedOp_t op) {
  switch (type) {
    case ncclInt8: return reduceAs<int8_t>(by_rank, op);
    case ncclUint8: return reduceAs<uint8_t>(by_rank, op);
    case ncclInt32: return reduceAs<int32_t>(by_rank, op);
    case ncclUint32: return reduceAs<uint32_t>(by_rank, op);
    case ncclInt64: return reduceAs<int64_t>(by_rank, op);
    case ncclUint64: return reduceAs<uint64_t>(by_rank, op);
    case ncclFloat32: return reduceAs<float>(by_rank, op);
    case ncclFloat16: return reduceAs<Rounded<pipeshard::Half>>(by_rank, op);
    case ncclBfloat16: return reduceAs<Rounded<pipeshard::Bfloat>>(by_rank, op);
    default: return reduceAs<double>(by_rank, op);
  }
}

}  // namespace standin::nccl
