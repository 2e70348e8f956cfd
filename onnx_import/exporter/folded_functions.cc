#include "onnx_import/exporter/folded_functions.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ir/base/convert.h"

namespace pipeshard {
namespace {

struct Invertible {
  const char* call;  // as the exporter names what it gives
  const char* operator_type;
  double (*before)(double);
};

constexpr std::array<Invertible, 7> kInvertible = {{
    {"exp", "Exp", [](double y) { return std::log(y); }},
    {"log", "Log", [](double y) { return std::exp(y); }},
    {"neg", "Neg", [](double y) { return -y; }},
    {"reciprocal", "Reciprocal", [](double y) { return 1 / y; }},
    {"sigmoid", "Sigmoid", [](double y) { return std::log(y) - std::log1p(-y); }},
    {"sqrt", "Sqrt", [](double y) { return y * y; }},
    {"tanh", "Tanh", [](double y) { return std::atanh(y); }},
}};
constexpr double kKnownTo = 1e-5;

// Distance of the type's numbers about 1.
double stepOf(DataType type) {
  double step = 1;
  const auto isSeen = [&](double sum) { return numbersOf(type, bytesOf(type, {sum})).front() != 1; };
  while (isSeen(1 + step / 2)) step /= 2;
  return step;
}

double beforeAll(const FoldedFunction& function, double number) {
  for (auto name = function.rbegin(); name != function.rend(); ++name)
    number = std::ranges::find(kInvertible, *name, &Invertible::operator_type)->before(number);
  return number;
}

}  // namespace

std::optional<FoldedFunction> takeFunction(Fold& fold, DataType type, const std::vector<std::byte>& bytes) {
  FoldedFunction function;
  for (const Invertible& invertible : kInvertible) {
    const auto count = std::erase(fold.calls, invertible.call);
    if (count > 1) return std::nullopt;
    if (count == 1) function.emplace_back(invertible.operator_type);
  }
  if (function.size() < 2) return function;
  if (function != FoldedFunction{"Exp", "Neg"} || !isConvertible(type, DataType::kFloat64))
    return std::nullopt;
  const std::vector<double> numbers = numbersOf(type, bytes);
  if (std::ranges::all_of(numbers, [](double number) { return number < 0; })) return function;
  return FoldedFunction{"Neg", "Exp"};
}

std::optional<std::vector<std::byte>> beforeFunction(const FoldedFunction& function, DataType type,
                                                     const std::vector<std::byte>& bytes) {
  if (function.empty()) return bytes;
  if (!isConvertible(type, DataType::kFloat64)) return std::nullopt;
  std::vector<double> numbers = numbersOf(type, bytes);
  const double step = stepOf(type) / 2;
  for (double& number : numbers) {
    const double before = beforeAll(function, number);
    const double off = std::max(std::abs(beforeAll(function, number * (1 + step)) - before),
                                std::abs(beforeAll(function, number * (1 - step)) - before));
    if (!std::isfinite(before) || !(off <= kKnownTo * std::max(1.0, std::abs(before)))) return std::nullopt;
    number = before;
  }
  return bytesOf(type, numbers);
}

}  // namespace pipeshard
