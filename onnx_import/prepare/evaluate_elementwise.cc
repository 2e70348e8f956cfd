// Operators that work element by element, with broadcasting.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "ir/base/error.h"
#include "onnx_import/prepare/evaluate_families.h"
#include "onnx_import/prepare/evaluator.h"

namespace pipeshard {
namespace {

using Result = std::optional<std::vector<Constant>>;

// Calls f(i, a, b): the result's element i reads element a of one input and element b of the other.
template <typename F>
void forEachPair(const Shape& a, const Shape& b, const Shape& shape, F&& f) {
  const auto stridesIn = [&](const Shape& from) {
    std::vector<int64_t> strides(shape.size(), 0);
    const Shape own = rowMajorStrides(from);
    const size_t skip = shape.size() - from.size();
    for (size_t axis = 0; axis < from.size(); ++axis) strides[skip + axis] = from[axis] == 1 ? 0 : own[axis];
    return strides;
  };
  const std::vector<int64_t> sa = stridesIn(a);
  const std::vector<int64_t> sb = stridesIn(b);
  std::vector<int64_t> coordinate(shape.size(), 0);
  const int64_t count = elementCount(shape);
  for (int64_t i = 0, ia = 0, ib = 0; i < count; ++i) {
    f(i, ia, ib);
    for (size_t axis = shape.size(); axis-- > 0;) {
      ia += sa[axis];
      ib += sb[axis];
      if (++coordinate[axis] < shape[axis]) break;
      ia -= sa[axis] * shape[axis];
      ib -= sb[axis] * shape[axis];
      coordinate[axis] = 0;
    }
  }
}

// f(a, b, out) returns false to give up (division by zero).
template <typename F>
Result binary(const Constant& a, const Constant& b, DataType result_type, F&& f) {
  if (a.data_type != b.data_type) return std::nullopt;
  const Shape shape = broadcastShapes(a.shape, b.shape);
  Constant result = makeZeros(result_type, shape);
  bool good = true;
  const bool known =
      withElementType(a.data_type == DataType::kBool ? DataType::kUint8 : a.data_type, [&](auto tag) {
        using T = decltype(tag);
        const T* pa = elementsOf<T>(a);
        const T* pb = elementsOf<T>(b);
        forEachPair(a.shape, b.shape, shape,
                    [&](int64_t i, int64_t ia, int64_t ib) { good = good && f(pa[ia], pb[ib], result, i); });
      });
  if (!known || !good) return std::nullopt;
  return Result{{std::move(result)}};
}

// Signed overflow wraps.
template <typename T, typename F>
T wrapped(T a, T b, F&& f) {
  if constexpr (std::is_floating_point_v<T>) {
    return f(a, b);
  } else {
    using U = uint64_t;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  }
}

template <typename T>
bool divide(T a, T b, T& out) {
  if constexpr (std::is_floating_point_v<T>) {
    out = a / b;
  } else {
    if (b == 0) return false;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) {
        out = wrapped(T{0}, a, [](auto x, auto y) { return x - y; });
        return true;
      }
    }
    out = static_cast<T>(a / b);
  }
  return true;
}

template <typename T>
bool modulo(T a, T b, bool truncated, T& out) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!truncated) return false;
    out = std::fmod(a, b);
  } else {
    if (b == 0) return false;
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) {
        out = 0;
        return true;
      }
    }
    out = static_cast<T>(a % b);
    if (!truncated && out != 0 && ((out < 0) != (b < 0))) out = static_cast<T>(out + b);
  }
  return true;
}

template <typename T>
T power(T base, T exponent) {
  if constexpr (std::is_floating_point_v<T>) {
    return std::pow(base, exponent);
  } else {
    if (exponent < 0) return base == 1 ? T{1} : T{0};
    T result = 1;
    for (T factor = base; exponent > 0; exponent = static_cast<T>(exponent / 2)) {
      if (exponent % 2 != 0) result = wrapped(result, factor, [](auto x, auto y) { return x * y; });
      factor = wrapped(factor, factor, [](auto x, auto y) { return x * y; });
    }
    return result;
  }
}

enum class Arithmetic { kAdd, kSub, kMul, kDiv, kMod, kTruncatedMod, kPow, kMin, kMax };

template <typename T>
bool compute(Arithmetic op, T a, T b, T& out) {
  switch (op) {
    case Arithmetic::kAdd: out = wrapped(a, b, [](auto x, auto y) { return x + y; }); return true;
    case Arithmetic::kSub: out = wrapped(a, b, [](auto x, auto y) { return x - y; }); return true;
    case Arithmetic::kMul: out = wrapped(a, b, [](auto x, auto y) { return x * y; }); return true;
    case Arithmetic::kDiv: return divide(a, b, out);
    case Arithmetic::kMod: return modulo(a, b, false, out);
    case Arithmetic::kTruncatedMod: return modulo(a, b, true, out);
    case Arithmetic::kPow: out = power(a, b); return true;
    case Arithmetic::kMin: out = std::min(a, b); return true;
    case Arithmetic::kMax: out = std::max(a, b); return true;
  }
  return false;
}

Result arithmetic(Arithmetic op, const Constant& a, const Constant& b) {
  if (a.data_type == DataType::kBool) return std::nullopt;
  return binary(a, b, a.data_type, [op](auto x, auto y, Constant& out, int64_t i) {
    using T = decltype(x);
    return compute<T>(op, x, y, elementsOf<T>(out)[i]);
  });
}

enum class Comparison { kEqual, kLess, kLessOrEqual, kGreater, kGreaterOrEqual, kAnd, kOr, kXor };

Result compare(Comparison op, const Constant& a, const Constant& b) {
  return binary(a, b, DataType::kBool, [op](auto x, auto y, Constant& out, int64_t i) {
    bool result = false;
    switch (op) {
      case Comparison::kEqual: result = x == y; break;
      case Comparison::kLess: result = x < y; break;
      case Comparison::kLessOrEqual: result = x <= y; break;
      case Comparison::kGreater: result = x > y; break;
      case Comparison::kGreaterOrEqual: result = x >= y; break;
      case Comparison::kAnd: result = x != 0 && y != 0; break;
      case Comparison::kOr: result = x != 0 || y != 0; break;
      case Comparison::kXor: result = (x != 0) != (y != 0); break;
    }
    elementsOf<uint8_t>(out)[i] = result ? 1 : 0;
    return true;
  });
}

// Casting a float that does not fit into an integer is undefined in C++ and in ONNX; here it saturates, NaN
// gives 0.
template <typename To, typename From>
To convert(From value) {
  if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (std::isnan(value)) return To{0};
    // As doubles, so that 2^63 is exact.
    const double wide = std::trunc(static_cast<double>(value));
    const double highest = std::ldexp(1.0, std::numeric_limits<To>::digits);
    if (wide >= highest) return std::numeric_limits<To>::max();
    if (wide <= (std::is_signed_v<To> ? -highest : 0.0)) return std::numeric_limits<To>::min();
    return static_cast<To>(wide);
  } else {
    return static_cast<To>(value);
  }
}

Result cast(const Constant& input, DataType type) {
  if (input.data_type == type) return Result{{input}};
  const bool to_bool = type == DataType::kBool;
  if (dataTypeSize(type) == 0) return std::nullopt;
  Constant result = makeZeros(type, input.shape);
  const int64_t count = elementCount(input.shape);
  bool known = false;
  withElementType(input.data_type == DataType::kBool ? DataType::kUint8 : input.data_type, [&](auto from) {
    using From = decltype(from);
    known = withElementType(to_bool ? DataType::kUint8 : type, [&](auto to) {
      using To = decltype(to);
      const From* in = elementsOf<From>(input);
      To* out = elementsOf<To>(result);
      for (int64_t i = 0; i < count; ++i)
        out[i] = to_bool ? static_cast<To>(in[i] != From{0}) : convert<To>(in[i]);
    });
  });
  return known ? Result{{std::move(result)}} : std::nullopt;
}

template <typename F>
Result floatUnary(const Constant& input, F&& f) {
  if (input.data_type != DataType::kFloat32 && input.data_type != DataType::kFloat64) return std::nullopt;
  Constant result = input;
  withElementType(input.data_type, [&](auto tag) {
    using T = decltype(tag);
    if constexpr (std::is_floating_point_v<T>) {
      for (int64_t i = 0; i < elementCount(input.shape); ++i)
        elementsOf<T>(result)[i] = f(elementsOf<T>(input)[i]);
    }
  });
  return Result{{std::move(result)}};
}

Result signedUnary(const Constant& input, bool absolute) {
  if (input.data_type == DataType::kBool) return std::nullopt;
  Constant result = input;
  const bool known = withElementType(input.data_type, [&](auto tag) {
    using T = decltype(tag);
    for (int64_t i = 0; i < elementCount(input.shape); ++i) {
      T& element = elementsOf<T>(result)[i];
      if (absolute && !(element < T{0})) continue;
      element = wrapped(T{0}, element, [](auto x, auto y) { return x - y; });
    }
  });
  return known ? Result{{std::move(result)}} : std::nullopt;
}

Result floatUnaryByName(std::string_view op, const Constant& x) {
  if (op == "Sqrt") return floatUnary(x, [](auto v) { return std::sqrt(v); });
  if (op == "Exp") return floatUnary(x, [](auto v) { return std::exp(v); });
  if (op == "Log") return floatUnary(x, [](auto v) { return std::log(v); });
  if (op == "Sin") return floatUnary(x, [](auto v) { return std::sin(v); });
  if (op == "Cos") return floatUnary(x, [](auto v) { return std::cos(v); });
  if (op == "Tanh") return floatUnary(x, [](auto v) { return std::tanh(v); });
  if (op == "Floor") return floatUnary(x, [](auto v) { return std::floor(v); });
  if (op == "Ceil") return floatUnary(x, [](auto v) { return std::ceil(v); });
  if (op == "Relu") return floatUnary(x, [](auto v) { return v < 0 ? decltype(v){0} : v; });
  if (op == "Reciprocal") return floatUnary(x, [](auto v) { return 1 / v; });
  return std::nullopt;
}

Result unary(const Node& node, const ConstantInputs& inputs) {
  const Constant& x = *inputs[0];
  if (node.op_type == "Neg" || node.op_type == "Abs") return signedUnary(x, node.op_type == "Abs");
  if (node.op_type == "Not") {
    if (x.data_type != DataType::kBool) return std::nullopt;
    Constant result = x;
    for (std::byte& element : result.bytes) element = element == std::byte{0} ? std::byte{1} : std::byte{0};
    return Result{{std::move(result)}};
  }
  if (node.op_type == "Cast") {
    const auto it = node.attributes.find("to");
    if (it == node.attributes.end() || !std::holds_alternative<int64_t>(it->second)) return std::nullopt;
    return cast(x, static_cast<DataType>(std::get<int64_t>(it->second)));
  }
  if (node.op_type == "CastLike" && inputs.size() == 2 && inputs[1] != nullptr)
    return cast(x, inputs[1]->data_type);
  return floatUnaryByName(node.op_type, x);
}

Result variadic(Arithmetic op, const ConstantInputs& inputs) {
  Result result{{*inputs[0]}};
  for (size_t i = 1; i < inputs.size() && result; ++i) {
    if (inputs[i] == nullptr) return std::nullopt;
    result = arithmetic(op, result->front(), *inputs[i]);
  }
  return result;
}

}  // namespace

std::optional<std::vector<Constant>> evaluateElementwise(const Node& node, const ConstantInputs& inputs) {
  static const std::unordered_map<std::string_view, Arithmetic> kArithmetic = {{"Add", Arithmetic::kAdd},
                                                                               {"Sub", Arithmetic::kSub},
                                                                               {"Mul", Arithmetic::kMul},
                                                                               {"Div", Arithmetic::kDiv},
                                                                               {"Mod", Arithmetic::kMod}};
  static const std::unordered_map<std::string_view, Comparison> kComparisons = {
      {"Equal", Comparison::kEqual},
      {"Less", Comparison::kLess},
      {"LessOrEqual", Comparison::kLessOrEqual},
      {"Greater", Comparison::kGreater},
      {"GreaterOrEqual", Comparison::kGreaterOrEqual},
      {"And", Comparison::kAnd},
      {"Or", Comparison::kOr},
      {"Xor", Comparison::kXor}};
  if (inputs.empty() || inputs[0] == nullptr) return std::nullopt;
  if (node.op_type == "Min") return variadic(Arithmetic::kMin, inputs);
  if (node.op_type == "Max") return variadic(Arithmetic::kMax, inputs);
  if (node.op_type == "Sum") return variadic(Arithmetic::kAdd, inputs);
  const auto operation = kArithmetic.find(node.op_type);
  const auto comparison = kComparisons.find(node.op_type);
  const bool pow = node.op_type == "Pow";
  if (operation == kArithmetic.end() && comparison == kComparisons.end() && !pow) return unary(node, inputs);
  // Before opset 7 broadcasting was an attribute with another meaning.
  if (inputs.size() != 2 || inputs[1] == nullptr || node.opset_version < 7) return std::nullopt;
  if (comparison != kComparisons.end()) return compare(comparison->second, *inputs[0], *inputs[1]);
  if (pow) {
    const Result exponent = cast(*inputs[1], inputs[0]->data_type);
    // A fractional exponent of an integer base would be cut off.
    if (!exponent || (isInteger(inputs[0]->data_type) && isFloatingPoint(inputs[1]->data_type)))
      return std::nullopt;
    return arithmetic(Arithmetic::kPow, *inputs[0], exponent->front());
  }
  const bool truncated = operation->second == Arithmetic::kMod && node.intAttribute("fmod", 0) != 0;
  return arithmetic(truncated ? Arithmetic::kTruncatedMod : operation->second, *inputs[0], *inputs[1]);
}

}  // namespace pipeshard
