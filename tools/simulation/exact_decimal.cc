#include "tools/simulation/exact_decimal.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/base/error.h"

namespace pipeshard {
namespace {

constexpr int kMostDigits = 15;

int64_t powerOfTen(int exponent) {
  int64_t power = 1;
  for (int i = 0; i < exponent; ++i) power *= 10;
  return power;
}

}  // namespace

Decimal parseDecimal(std::string_view option, std::string_view text) {
  Decimal result;
  std::string_view rest = text;
  const bool negative = !rest.empty() && rest.front() == '-';
  if (negative) rest.remove_prefix(1);
  int digits = 0;
  bool point = false;
  for (const char c : rest) {
    const bool digit = c >= '0' && c <= '9';
    if ((c == '.' && point) || (c != '.' && !digit) || (digit && ++digits > kMostDigits)) {
      digits = 0;
      break;
    }
    if (c == '.') {
      point = true;
      continue;
    }
    result.digits = result.digits * 10 + (c - '0');
    if (point) ++result.places;
  }
  if (digits == 0)
    fail(ErrorCode::kUsage, "{}: expected a decimal number of at most {} digits, found \"{}\"", option,
         kMostDigits, text);
  while (result.places > 0 && result.digits % 10 == 0) result.digits /= 10, --result.places;
  if (negative) result.digits = -result.digits;
  return result;
}

std::map<std::string, Decimal> parseDecimals(std::string_view option, std::string_view text,
                                             const std::vector<std::string>& known) {
  std::map<std::string, Decimal> result;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const size_t equals = part.find('=');
    const std::string key(part.substr(0, equals));
    if (equals == std::string_view::npos || std::find(known.begin(), known.end(), key) == known.end() ||
        result.count(key) > 0) {
      fail(ErrorCode::kUsage, "{}: found \"{}\"; expected {}=NUMBER, each at most once, separated by commas",
           option, part, fmt::join(known, "=NUMBER or "));
    }
    result[key] = parseDecimal(fmt::format("{} {}", option, key), part.substr(equals + 1));
  }
  return result;
}

int64_t commonScale(const std::vector<Decimal>& decimals) {
  int places = 0;
  for (const Decimal& decimal : decimals) places = std::max(places, decimal.places);
  return powerOfTen(places);
}

int64_t inUnits(const Decimal& decimal, int64_t scale) {
  PIPESHARD_CHECK(scale % powerOfTen(decimal.places) == 0, "scale {} of a number with {} places", scale,
                  decimal.places);
  return decimal.digits * (scale / powerOfTen(decimal.places));
}

std::string decimalText(int64_t units, int64_t scale) {
  std::string text = fmt::format("{:.6f}", static_cast<double>(units) / static_cast<double>(scale));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

}  // namespace pipeshard
