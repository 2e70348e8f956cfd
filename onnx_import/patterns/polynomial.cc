#include "onnx_import/patterns/polynomial.h"

#include <algorithm>
#include <cmath>

#include "ir/operators/initializer_role.h"

namespace pipeshard {
namespace {

constexpr double kRelativeError = 1e-6;
constexpr size_t kMostSteps = 64;  // the longest form of a pattern has a dozen nodes
constexpr int kHighestPower = 4;
constexpr size_t kMostTerms = 16;

Polynomial number(double value) { return value == 0 ? Polynomial{} : Polynomial{{{0, 0}, value}}; }

std::optional<double> asNumber(const Polynomial& polynomial) {
  if (polynomial.empty()) return 0;
  if (polynomial.size() > 1 || polynomial.begin()->first != std::pair(0, 0)) return std::nullopt;
  return polynomial.begin()->second;
}

Polynomial sum(const Polynomial& a, const Polynomial& b, double sign) {
  Polynomial result = a;
  for (const auto& [powers, coefficient] : b) {
    const double total = result[powers] += sign * coefficient;
    if (total == 0) result.erase(powers);
  }
  return result;
}

std::optional<Polynomial> product(const Polynomial& a, const Polynomial& b) {
  Polynomial result;
  for (const auto& [left, coefficient] : a) {
    for (const auto& [right, other] : b) {
      const std::pair powers(left.first + right.first, left.second + right.second);
      if (powers.first + powers.second > 2 * kHighestPower) return std::nullopt;
      const double total = result[powers] += coefficient * other;
      if (total == 0) result.erase(powers);
    }
  }
  if (result.size() > kMostTerms) return std::nullopt;
  return result;
}

std::optional<Polynomial> power(const Polynomial& base, double exponent) {
  if (exponent != std::round(exponent) || exponent < 1 || exponent > kHighestPower) return std::nullopt;
  std::optional<Polynomial> result = base;
  for (int k = 1; k < exponent && result; ++k) result = product(*result, base);
  return result;
}

}  // namespace

bool isNear(double number, double expected) {
  return std::abs(number - expected) <= kRelativeError * std::abs(expected);
}

bool isNear(const Polynomial& polynomial, const Polynomial& expected) {
  if (polynomial.size() != expected.size()) return false;
  for (const auto& [powers, coefficient] : expected) {
    const auto found = polynomial.find(powers);
    if (found == polynomial.end() || !isNear(found->second, coefficient)) return false;
  }
  return true;
}

PatternGraph::PatternGraph(const Graph& of, MoreRows* more)
    : graph(of),
      more_rows(more),
      uses(computeUseDef(of)),
      is_output(of.values.size()),
      is_number(of.values.size()),
      is_zero(of.values.size()) {
  for (const ValueId output : graph.outputs) is_output[output.index()] = true;
  const std::vector<InitializerRole> roles = initializerRoles(graph);
  for (const auto& [id, initializer] : graph.initializers) {
    const Constant* constant = graph.constant(id);
    const InitializerRole role = roles[id.index()];
    if (constant == nullptr || !hasKernelType(id) ||
        (role != InitializerRole::kConstant && role != InitializerRole::kSetting))
      continue;
    is_number[id.index()] = elementCount(constant->shape) == 1;
    is_zero[id.index()] = std::all_of(constant->bytes.begin(), constant->bytes.end(),
                                      [](std::byte byte) { return byte == std::byte(0); });
  }
}

bool PatternGraph::isArithmetic(NodeId id) const {
  const Node& node = graph.node(id);
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Neg", "Pow"}) {
    if (node.is(op)) return true;
  }
  return false;
}

bool PatternGraph::hasKernelType(ValueId value) const {
  const DataType type = graph.dataType(value);
  return type == DataType::kFloat32 || type == DataType::kFloat64;
}

std::optional<double> PatternGraph::numberOf(ValueId value) const {
  const Constant* constant = graph.constant(value);
  if (constant == nullptr || elementCount(constant->shape) != 1) return std::nullopt;
  const bool is_integer = constant->data_type == DataType::kInt32 || constant->data_type == DataType::kInt64;
  if (!is_integer && !is_number[value.index()]) return std::nullopt;
  return numericElements(*constant)[0];
}

std::optional<Polynomial> PolynomialWriter::write(ValueId value) {
  if (++steps_ > kMostSteps) return std::nullopt;
  if (value == x_) return Polynomial{{{1, 0}, 1}};
  if (value == f_) return Polynomial{{{0, 1}, 1}};
  if (const std::optional<double> found = patterns_.numberOf(value)) return number(*found);
  const NodeId producer = patterns_.uses.producer[value.index()];
  if (!producer.valid() || !patterns_.isArithmetic(producer)) return std::nullopt;
  nodes_.insert(producer);
  return ofNode(producer);
}

std::optional<Polynomial> PolynomialWriter::ofNode(NodeId id) {
  const Node& node = patterns_.graph.node(id);
  const std::optional<Polynomial> a = write(node.inputs[0]);
  if (!a) return std::nullopt;
  if (node.is("Neg")) return sum({}, *a, -1);
  const ValueId second = node.inputs[1];
  if (node.is("Pow")) {  // an integer exponent is a number, too
    const std::optional<double> exponent = patterns_.numberOf(second);
    return exponent ? power(*a, *exponent) : std::nullopt;
  }
  const std::optional<Polynomial> b = write(second);
  if (!b) return std::nullopt;
  if (node.is("Add")) return sum(*a, *b, 1);
  if (node.is("Sub")) return sum(*a, *b, -1);
  if (node.is("Mul")) return product(*a, *b);
  const std::optional<double> divisor = asNumber(*b);
  if (!divisor || *divisor == 0) return std::nullopt;
  return product(*a, number(1 / *divisor));
}

}  // namespace pipeshard
