#include "ir/base/convert.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "ir/base/error.h"
#include "ir/base/small_floats.h"

namespace pipeshard {
namespace {

// The same number: the exponent moves from a bias of 15 to one of 127; what is below 2^-14 is a whole number
// of 2^-24. Without branches, as the next one.
float floatOf(Half half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000) << 16;
  const uint32_t exponent = half.bits & 0x7c00, magnitude = half.bits & 0x7fff;
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F;
  const uint32_t rest = (magnitude << 13) + ((exponent == 0x7c00 ? 224U : 112U) << 23);
  return std::bit_cast<float>(sign | (exponent == 0 ? std::bit_cast<uint32_t>(small) : rest));
}

// As narrowToHalf. Below 2^-14 the sum with 0.5 is rounded where a subnormal half ends.
Half halfOf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000;
  const uint32_t rounded = (magnitude - (112U << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const uint32_t finite = magnitude < 113U << 23 ? small : rounded;
  const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  return {static_cast<uint16_t>(sign | (magnitude < 143U << 23 ? finite : large))};
}

template <typename To, typename From>
To convertOne(From from) {
  if constexpr (std::is_same_v<From, Half> && std::is_same_v<To, float>) {
    return floatOf(from);
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Half>) {
    return halfOf(from);
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, Bfloat>) {
    return convertOne<To>(widen(from));
  } else if constexpr (std::is_same_v<To, Half>) {
    return narrowToHalf(static_cast<double>(from));
  } else if constexpr (std::is_same_v<To, Bfloat>) {
    return narrowToBfloat(static_cast<float>(static_cast<double>(from)));
  } else if constexpr (std::is_same_v<To, bool>) {
    return from != From{0};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // A value outside of the range has no meaning in C++: it becomes the nearest one that has.
    if (std::isnan(from)) return To{0};
    if (from <= static_cast<From>(std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (from >= static_cast<From>(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
    return static_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

template <typename From, typename To>
void convertAll(const void* from, void* to, size_t count) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  for (size_t i = 0; i < count; ++i) {
    From element;
    std::memcpy(&element, source + i * sizeof(From), sizeof(From));
    const To converted = convertOne<To>(element);
    std::memcpy(target + i * sizeof(To), &converted, sizeof(To));
  }
}

// Calls f with a value of the C++ type of `type`; false for a type without one.
template <typename F>
bool withType(DataType type, F&& f) {
  switch (type) {
    case DataType::kBool: f(uint8_t{}, true); return true;
    case DataType::kUint8: f(uint8_t{}, false); return true;
    case DataType::kInt8: f(int8_t{}, false); return true;
    case DataType::kUint16: f(uint16_t{}, false); return true;
    case DataType::kInt16: f(int16_t{}, false); return true;
    case DataType::kUint32: f(uint32_t{}, false); return true;
    case DataType::kInt32: f(int32_t{}, false); return true;
    case DataType::kUint64: f(uint64_t{}, false); return true;
    case DataType::kInt64: f(int64_t{}, false); return true;
    case DataType::kFloat16: f(Half{}, false); return true;
    case DataType::kBfloat16: f(Bfloat{}, false); return true;
    case DataType::kFloat32: f(float{}, false); return true;
    case DataType::kFloat64: f(double{}, false); return true;
    default: return false;
  }
}

// Types that have no arithmetic of their own: by way of float64, or of integers of 8 bits.
bool isIndirect(DataType type) {
  return isSmallFloat(type) || type == DataType::kInt4 || type == DataType::kUint4;
}

// [-8, 7] or [0, 15], wrapped.
int8_t wrapToFour(int64_t value, bool has_sign) {
  const auto low = static_cast<int8_t>(value & 0xf);
  return static_cast<int8_t>(has_sign && low > 7 ? low - 16 : low);
}

void widenSmall(DataType type, const uint8_t* from, double* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    to[i] = isSmallFloat(type)        ? smallFloatValue(type, from[i])
            : type == DataType::kInt4 ? static_cast<double>(static_cast<int8_t>(from[i]))
                                      : static_cast<double>(from[i]);
  }
}

void narrowToSmall(DataType type, const double* from, uint8_t* to, size_t count,
                   SmallFloatRounding rounding) {
  for (size_t i = 0; i < count; ++i) {
    if (isSmallFloat(type)) {
      to[i] = smallFloatCode(type, from[i], rounding);
    } else {
      to[i] = static_cast<uint8_t>(wrapToFour(convertOne<int64_t>(from[i]), type == DataType::kInt4));
    }
  }
}

constexpr size_t kBlock = 1024;  // elements that are float64 on the way

}  // namespace

bool isConvertible(DataType from, DataType to) {
  const auto known = [](DataType type) { return isIndirect(type) || withType(type, [](auto, bool) {}); };
  return known(from) && known(to);
}

void convertElements(DataType from_type, const void* from, DataType to_type, void* to, size_t count,
                     SmallFloatRounding rounding) {
  PIPESHARD_CHECK(isConvertible(from_type, to_type), "no conversion from {} to {}", dataTypeName(from_type),
                  dataTypeName(to_type));
  if (from_type == to_type) {
    if (count > 0) std::memcpy(to, from, count * dataTypeSize(from_type));
    return;
  }
  const auto* source_bytes = static_cast<const uint8_t*>(from);
  auto* target_bytes = static_cast<uint8_t*>(to);
  if (isIndirect(from_type) || isIndirect(to_type)) {
    double wide[kBlock];
    for (size_t at = 0; at < count; at += kBlock) {
      const size_t n = std::min(kBlock, count - at);
      const uint8_t* source = source_bytes + at * dataTypeSize(from_type);
      uint8_t* target = target_bytes + at * dataTypeSize(to_type);
      if (isIndirect(from_type)) {
        widenSmall(from_type, source, wide, n);
      } else {
        convertElements(from_type, source, DataType::kFloat64, wide, n);
      }
      if (isIndirect(to_type)) {
        narrowToSmall(to_type, wide, target, n, rounding);
      } else {
        convertElements(DataType::kFloat64, wide, to_type, target, n);
      }
    }
    return;
  }
  withType(from_type, [&](auto source, bool) {
    withType(to_type, [&](auto target, bool to_bool) {
      // A bool in a file may hold any byte: it is read as a uint8, and written as 0 or 1.
      if (to_bool) {
        convertAll<decltype(source), bool>(from, to, count);
      } else {
        convertAll<decltype(source), decltype(target)>(from, to, count);
      }
    });
  });
}

int64_t countBeyond(DataType from_type, const void* from, DataType to_type, const void* to, size_t count) {
  if (dataTypeSize(to_type) >= dataTypeSize(from_type) || !isFloatingPoint(from_type)) return 0;
  constexpr size_t kTogether = 4096;
  std::array<double, kTogether> before{}, after{};
  int64_t beyond = 0;
  for (size_t at = 0; at < count; at += kTogether) {
    const size_t n = std::min(kTogether, count - at);
    convertElements(from_type, static_cast<const std::byte*>(from) + at * dataTypeSize(from_type),
                    DataType::kFloat64, before.data(), n);
    convertElements(to_type, static_cast<const std::byte*>(to) + at * dataTypeSize(to_type),
                    DataType::kFloat64, after.data(), n);
    for (size_t i = 0; i < n; ++i) beyond += std::isfinite(before[i]) && !std::isfinite(after[i]) ? 1 : 0;
  }
  return beyond;
}

}  // namespace pipeshard
