#include "ir/graph/exact_number.h"

#include <cstdlib>

#include <fmt/format.h>

namespace pipeshard {
namespace {

constexpr const char* kExactNumber = "pipeshard.number";

double roundedTo(DataType type, double number) { return numericElements(makeScalar(type, number)).front(); }

}  // namespace

void markExactNumber(Value& value, double number) {
  if (isFloatingPoint(value.data_type) && roundedTo(value.data_type, number) != number)
    value.metadata.emplace_back(kExactNumber, fmt::format("{}", number));
}

std::optional<double> exactNumber(const Value& value, const Constant& constant) {
  if (elementCount(constant.shape) != 1) return std::nullopt;
  for (const auto& [key, text] : value.metadata) {
    if (key != kExactNumber) continue;
    const double number = std::strtod(text.c_str(), nullptr);
    if (roundedTo(constant.data_type, number) == numericElements(constant).front()) return number;
  }
  return std::nullopt;
}

}  // namespace pipeshard
