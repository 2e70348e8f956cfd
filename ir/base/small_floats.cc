// There are so few numbers that a table of the positive ones says all: codes ascend with the numbers.
#include "ir/base/small_floats.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

struct Format {
  DataType type;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;       // the largest exponent is infinity and NaN, as in larger formats
  bool has_negative_zero;  // else its code is the only NaN (the "uz" formats)
  bool has_nan;
};

constexpr std::array<Format, 5> kFormats = {{
    {DataType::kFloat8E4M3FN, 4, 3, 7, false, true, true},
    {DataType::kFloat8E4M3FNUZ, 4, 3, 8, false, false, true},
    {DataType::kFloat8E5M2, 5, 2, 15, true, true, true},
    {DataType::kFloat8E5M2FNUZ, 5, 2, 16, false, false, true},
    {DataType::kFloat4E2M1, 2, 1, 1, false, true, false},
}};

const Format* formatOf(DataType type) {
  for (const Format& format : kFormats) {
    if (format.type == type) return &format;
  }
  return nullptr;
}

int signBit(const Format& format) { return 1 << (format.exponent_bits + format.mantissa_bits); }

// The finite numbers from 0 up, by code.
struct Numbers {
  explicit Numbers(const Format& format) {
    int codes = signBit(format);
    if (format.has_infinity) {
      codes -= 1 << format.mantissa_bits;
    } else if (format.has_nan && format.has_negative_zero) {
      --codes;  // the last one is NaN
    }
    for (int code = 0; code < codes; ++code) {
      const int exponent = code >> format.mantissa_bits;
      const int mantissa = code & ((1 << format.mantissa_bits) - 1);
      const int units = exponent == 0 ? mantissa : mantissa | 1 << format.mantissa_bits;
      finite.push_back(std::ldexp(units, std::max(exponent, 1) - format.bias - format.mantissa_bits));
    }
  }
  std::vector<double> finite;
};

const Numbers& numbersOf(const Format& format) {
  static const std::array<Numbers, kFormats.size()> all = {Numbers(kFormats[0]), Numbers(kFormats[1]),
                                                           Numbers(kFormats[2]), Numbers(kFormats[3]),
                                                           Numbers(kFormats[4])};
  return all[&format - kFormats.data()];
}

uint8_t notANumber(const Format& format) {
  if (!format.has_nan || !format.has_negative_zero) return static_cast<uint8_t>(signBit(format));
  if (format.has_infinity) return static_cast<uint8_t>(signBit(format) - (1 << (format.mantissa_bits - 1)));
  return static_cast<uint8_t>(signBit(format) - 1);
}

// Of a number that is rounded to beyond the largest finite one.
uint8_t overflow(const Format& format, bool saturate, uint8_t sign) {
  const auto finite = static_cast<uint8_t>(numbersOf(format).finite.size());
  if (saturate || !format.has_nan) return static_cast<uint8_t>(sign | (finite - 1));
  if (format.has_infinity) return sign | finite;
  return format.has_negative_zero ? sign | notANumber(format) : notANumber(format);
}

constexpr int kPowerBias = 127;
constexpr uint8_t kPowerNotANumber = 255;

uint8_t powerCode(double value, SmallFloatRounding rounding) {
  if (std::isnan(value)) return kPowerNotANumber;
  const double magnitude = std::fabs(value);
  const uint8_t above = rounding.saturate ? kPowerNotANumber - 1 : kPowerNotANumber;
  const uint8_t below = rounding.saturate ? 0 : kPowerNotANumber;
  if (magnitude == 0) return below;
  if (std::isinf(magnitude)) return above;
  int exponent = 0;
  const double fraction = 2 * std::frexp(magnitude, &exponent);  // in [1, 2)
  const bool up = rounding.power == PowerRounding::kNearest
                      ? fraction >= 1.5
                      : rounding.power == PowerRounding::kUp && fraction > 1;
  const int code = exponent - 1 + (up ? 1 : 0) + kPowerBias;
  if (code < 0) return below;
  return code >= kPowerNotANumber ? above : static_cast<uint8_t>(code);
}

}  // namespace

bool isSmallFloat(DataType type) { return type == DataType::kFloat8E8M0 || formatOf(type) != nullptr; }

double smallFloatValue(DataType type, uint8_t code) {
  if (type == DataType::kFloat8E8M0) {
    return code == kPowerNotANumber ? std::numeric_limits<double>::quiet_NaN()
                                    : std::ldexp(1, code - kPowerBias);
  }
  const Format* format = formatOf(type);
  PIPESHARD_CHECK(format != nullptr, "{} is no small float", dataTypeName(type));
  const int sign = signBit(*format);
  const int magnitude = code & (sign - 1);
  const bool negative = (code & sign) != 0;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (negative && magnitude == 0 && !format->has_negative_zero) return nan;
  const std::vector<double>& finite = numbersOf(*format).finite;
  double value = nan;
  if (magnitude < std::ssize(finite)) {
    value = finite[magnitude];
  } else if (format->has_infinity && magnitude == std::ssize(finite)) {
    value = std::numeric_limits<double>::infinity();
  }
  return negative ? -value : value;
}

uint8_t smallFloatCode(DataType type, double value, SmallFloatRounding rounding) {
  if (type == DataType::kFloat8E8M0) return powerCode(value, rounding);
  const Format* format = formatOf(type);
  PIPESHARD_CHECK(format != nullptr, "{} is no small float", dataTypeName(type));
  if (std::isnan(value)) return notANumber(*format);
  const double magnitude = std::fabs(value);
  const uint8_t sign = std::signbit(value) ? static_cast<uint8_t>(signBit(*format)) : 0;
  const std::vector<double>& finite = numbersOf(*format).finite;
  const double largest = finite.back();
  const double next = largest + (largest - finite[finite.size() - 2]);
  // Where the largest code is odd, a number half-way to the next one would be rounded up.
  const double limit = (largest + next) / 2;
  const bool beyond = finite.size() % 2 == 0 ? magnitude >= limit : magnitude > limit;
  if (beyond) return overflow(*format, rounding.saturate, sign);
  size_t above = 0;
  while (above < finite.size() && finite[above] < magnitude) ++above;
  size_t code = std::min(above, finite.size() - 1);
  if (above > 0 && above < finite.size()) {
    const double up = finite[above] - magnitude;
    const double down = magnitude - finite[above - 1];
    if (down < up || (down == up && above % 2 == 1)) code = above - 1;
  }
  if (code == 0 && !format->has_negative_zero) return 0;
  return static_cast<uint8_t>(sign | code);
}

}  // namespace pipeshard
