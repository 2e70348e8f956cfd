// float16 and bfloat16: between each other, and from and to the types that Cast has loops for.
#include "ir/base/error.h"
#include "runtime/kernels/base/widening.h"
#include "runtime/kernels/elementwise/cast.h"

namespace pipeshard::kernels {
namespace {

// Calls body(T{}) with the C++ type of `type`; false where there is none here.
template <typename Body>
bool withNarrow(DataType type, Body&& body) {
  switch (type) {
    case DataType::kFloat16: body(Half{}); return true;
    case DataType::kBfloat16: body(Bfloat{}); return true;
    default: return false;
  }
}

template <typename Body>
bool withLoop(DataType type, Body&& body) {
  switch (type) {
    case DataType::kFloat32: body(float{}); return true;
    case DataType::kFloat64: body(double{}); return true;
    case DataType::kInt32: body(int32_t{}); return true;
    case DataType::kInt64: body(int64_t{}); return true;
    case DataType::kInt8: body(int8_t{}); return true;
    case DataType::kUint8: body(uint8_t{}); return true;
    case DataType::kBool: body(bool{}); return true;
    default: return withNarrow(type, body);
  }
}

// Calls body(From{}, To{}) for the pairs of which one is narrow.
template <typename Body>
bool withPair(DataType from, DataType to, Body&& body) {
  bool known = false;
  const bool narrow_from =
      withNarrow(from, [&](auto x) { known = withLoop(to, [&](auto y) { body(x, y); }); });
  if (narrow_from) return known;
  withNarrow(to, [&](auto y) { known = withLoop(from, [&](auto x) { body(x, y); }); });
  return known;
}

}  // namespace

bool canConvert(DataType from, DataType to) {
  return withPair(from, to, [](auto, auto) {});
}

void convertTensor(DeviceQueue* queue, DataType from_type, const void* from, DataType to_type, void* to,
                   int64_t count, SmallFloatRounding) {
  const bool known = withPair(from_type, to_type, [&](auto x, auto y) {
    using From = decltype(x);
    using To = decltype(y);
    applyCast<From, To>(queue, count, static_cast<const Stored<From>*>(from), static_cast<To*>(to));
  });
  PIPESHARD_CHECK(known, "no conversion from {} to {} on this device", dataTypeName(from_type),
                  dataTypeName(to_type));
}

}  // namespace pipeshard::kernels
