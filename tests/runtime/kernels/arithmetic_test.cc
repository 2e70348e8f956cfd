// Kernels against plain loops on sizes that the conformance suite does not reach: many blocks and tiles, odd
// edges, every layout of broadcasting and reduction; and the same bits on one and two threads.
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "runtime/kernels/products/gemm.h"
#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {
namespace {

const auto kF32 = DataType::kFloat32;
const auto kF64 = DataType::kFloat64;
const auto kBf16 = DataType::kBfloat16;

void expectClose(const Tensor& got, const std::vector<double>& want, double tolerance,
                 const std::string& what) {
  const std::vector<double> numbers = numbersOf(got);
  ASSERT_EQ(numbers.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(numbers[i], want[i], tolerance * (1 + std::abs(want[i]))) << what << " element " << i;
}

std::vector<double> naiveGemm(int64_t m, int64_t n, int64_t k, bool ta, bool tb, const std::vector<double>& a,
                              const std::vector<double>& b) {
  std::vector<double> c(m * n);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      const double left = a[ta ? l * m + i : i * k + l];
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += left * b[tb ? j * k + l : l * n + j];
    }
  }
  return c;
}

TEST(MatrixKernels, GemmEqualsPlainLoopsInEveryFormAndOnAnyNumberOfThreads) {
  struct Size {
    int64_t m, n, k;
  };
  // The last four have rows that are copied before they are multiplied (float_tile.h).
  for (const Size& s : {Size{1, 1, 1}, Size{3, 5, 7}, Size{1, 700, 130}, Size{700, 1, 130},
                        Size{600, 530, 40}, Size{1040, 17, 260}, Size{64, 64, 3000}, Size{512, 40, 1100},
                        Size{20, 1024, 1100}, Size{512, 512, 50}, Size{300, 768, 2100}}) {
    for (int form = 0; form < 4; ++form) {
      const bool ta = (form & 1) != 0, tb = (form & 2) != 0;
      const Shape a_shape = ta ? Shape{s.k, s.m} : Shape{s.m, s.k},
                  b_shape = tb ? Shape{s.n, s.k} : Shape{s.k, s.n};
      const Tensor a = randomTensor(kF64, a_shape, 1), b = randomTensor(kF64, b_shape, 2),
                   c = randomTensor(kF64, {s.n}, 3);
      std::vector<double> want = naiveGemm(s.m, s.n, s.k, ta, tb, numbersOf(a), numbersOf(b));
      const std::vector<double> bias = numbersOf(c);
      for (size_t i = 0; i < want.size(); ++i) want[i] = 0.5 * want[i] + 2 * bias[i % bias.size()];
      const std::map<std::string, Attribute> attributes = {
          {"transA", int64_t{ta}}, {"transB", int64_t{tb}}, {"alpha", 0.5f}, {"beta", 2.0f}};
      const std::string what = fmt::format("{}x{}x{} form {}", s.m, s.n, s.k, form);
      expectClose(
          runOnOneAndTwoThreads(makeCall("", "Gemm", 13, {a, b, c}, {{kF64, {s.m, s.n}}}, attributes))[0],
          want, 1e-12, what);
      const auto narrow =
          makeCall("", "Gemm", 13, {convertTensor(a, kF32), convertTensor(b, kF32), convertTensor(c, kF32)},
                   {{kF32, {s.m, s.n}}}, attributes);
      expectClose(runOnOneAndTwoThreads(narrow)[0], want, 1e-4, what);
    }
  }
}

// Small ones in float32, large ones by the processor where it multiplies bfloat16: sums are float32's in
// either case, rounded once.
TEST(MatrixKernels, ProductsOfBfloat16AreRoundedOnce) {
  struct Size {
    int64_t m, n, k;
  };
  const auto product = [](const Size& s, int form, DataType type, DataType result, bool adds_row) {
    const bool ta = (form & 1) != 0, tb = (form & 2) != 0;
    const Tensor a = convertTensor(randomTensor(kF64, ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1), kBf16),
                 b = convertTensor(randomTensor(kF64, tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2), kBf16),
                 c = convertTensor(randomTensor(kF64, {s.n}, 3), kBf16);
    const auto in = [&](const Tensor& tensor) {
      return type == kBf16 ? tensor : convertTensor(tensor, type);
    };
    std::vector<std::optional<Tensor>> inputs = {in(a), in(b)};
    if (adds_row) inputs.emplace_back(in(c));
    return makeCall("", "Gemm", 13, inputs, {{result, {s.m, s.n}}},
                    {{"transA", int64_t{ta}}, {"transB", int64_t{tb}}, {"alpha", 0.5f}});
  };
  try {
    createKernel(product({3, 5, 7}, 0, kBf16, kBf16, false));
  } catch (const Error&) {
    GTEST_SKIP() << "the device has no kernels for bfloat16";
  }
  for (const Size& s :
       {Size{3, 5, 7}, Size{1, 700, 400}, Size{700, 1, 400}, Size{600, 530, 40}, Size{64, 64, 3000}}) {
    for (int form = 0; form < 4; ++form) {
      const std::string what = fmt::format("{}x{}x{} form {}", s.m, s.n, s.k, form);
      const std::vector<double> want = numbersOf(runKernel(product(s, form, kF64, kF64, false))[0]);
      expectClose(runOnOneAndTwoThreads(product(s, form, kBf16, kF32, false))[0], want, 1e-4, what);
      expectClose(runOnOneAndTwoThreads(product(s, form, kBf16, kBf16, false))[0], want, 0x1p-8, what);
      expectClose(runOnOneAndTwoThreads(product(s, form, kBf16, kBf16, true))[0],
                  numbersOf(runKernel(product(s, form, kF64, kF64, true))[0]), 0x1p-8, what + " with a row");
    }
  }
  expectAddsInPlace(product({600, 530, 40}, 1, kBf16, kF32, false), randomTensor(kF32, {600, 530}, 3));
  const auto batches = [](DataType type) {
    const auto in = [&](Shape shape, uint64_t seed) {
      const Tensor rounded = convertTensor(randomTensor(kF64, std::move(shape), seed), kBf16);
      return type == kBf16 ? rounded : convertTensor(rounded, type);
    };
    return makeCall("", "MatMul", 13, {in({2, 1, 70, 80}, 1), in({3, 80, 90}, 2)}, {{type, {2, 3, 70, 90}}});
  };
  expectClose(runOnOneAndTwoThreads(batches(kBf16))[0], numbersOf(runKernel(batches(kF64))[0]), 0x1p-8,
              "batches");
}

#ifdef __x86_64__
TEST(MatrixKernels, TheProcessorMultipliesBfloat16WhereItCan) {
  __builtin_cpu_init();
  const bool can = __builtin_cpu_supports("avx512bf16");
  EXPECT_EQ(kernels::makeBfloat16Product({.m = 64, .n = 64, .k = 64}, 1, 1) != nullptr, can);
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const kernels::GemmShape tiles{.transpose_a = ta, .transpose_b = tb, .m = 512, .n = 768, .k = 256};
      EXPECT_EQ(kernels::makeBfloat16Product(tiles, 1, 1) != nullptr, can) << ta << tb;
    }
  }
  EXPECT_EQ(kernels::makeBfloat16Product({.m = 8, .n = 8, .k = 8}, 1, 1), nullptr) << "too little work";
}
#endif

TEST(MatrixKernels, ProductsAddToWhatIsThere) {
  for (const int64_t k : {1, 40, 1100}) {
    const Tensor a = randomTensor(kF32, {k, 600}, 1), b = randomTensor(kF32, {k, 530}, 2),
                 total = randomTensor(kF32, {600, 530}, 3);
    expectAddsInPlace(
        makeCall("", "Gemm", 13, {a, b}, {{kF32, {600, 530}}}, {{"transA", int64_t{1}}, {"alpha", 0.5f}}),
        total);
    const Tensor left = randomTensor(kF32, {600, k}, 4);
    expectAddsInPlace(makeCall("", "MatMul", 13, {left, b}, {{kF32, {600, 530}}}), total);
  }
  const Tensor a = randomTensor(kF32, {2, 2}, 1);
  EXPECT_FALSE(createKernel(makeCall("", "Gemm", 13, {a, a, a}, {{kF32, {2, 2}}}))->mayAccumulate(0))
      << "the bias is the output's";
}

TEST(MatrixKernels, MatMulBroadcastsBatchesAsNumpyDoes) {
  const Tensor a = randomTensor(kF64, {2, 1, 3, 4}, 1), b = randomTensor(kF64, {5, 4, 6}, 2);
  const std::vector<double> x = numbersOf(a), y = numbersOf(b);
  std::vector<double> want;
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 5; ++j) {
      const auto product = naiveGemm(3, 6, 4, false, false, {x.begin() + i * 12, x.begin() + (i + 1) * 12},
                                     {y.begin() + j * 24, y.begin() + (j + 1) * 24});
      want.insert(want.end(), product.begin(), product.end());
    }
  }
  expectClose(runOnOneAndTwoThreads(makeCall("", "MatMul", 13, {a, b}, {{kF64, {2, 5, 3, 6}}}))[0], want,
              1e-13, "MatMul");
}

TEST(MatrixKernels, FusedMatMulReadsTransposedOperands) {
  const auto product = [](const Tensor& a, const Tensor& b, bool ta, bool tb) {
    return makeCall("com.microsoft", "FusedMatMul", 1, {a, b}, {{kF64, {2, 3, 5, 6}}},
                    {{"transA", int64_t{ta}}, {"transB", int64_t{tb}}, {"alpha", 0.5f}});
  };
  const auto swapped = [](const Tensor& x) {
    Shape shape = x.shape;
    std::swap(shape[shape.size() - 2], shape.back());
    std::vector<int64_t> permutation(shape.size());
    for (size_t i = 0; i < permutation.size(); ++i) permutation[i] = i;
    std::swap(permutation[permutation.size() - 2], permutation.back());
    return runKernel(makeCall("", "Transpose", 13, {x}, {{kF64, shape}}, {{"perm", permutation}}))[0];
  };
  for (const Shape& b_shape : {Shape{2, 3, 4, 6}, Shape{3, 4, 6}, Shape{4, 6}}) {
    const Tensor a = randomTensor(kF64, {2, 3, 5, 4}, 1), b = randomTensor(kF64, b_shape, 2);
    std::vector<double> want =
        numbersOf(runKernel(makeCall("", "MatMul", 13, {a, b}, {{kF64, {2, 3, 5, 6}}}))[0]);
    for (double& number : want) number *= 0.5;
    for (int form = 0; form < 4; ++form) {
      const bool ta = (form & 1) != 0, tb = (form & 2) != 0;
      const KernelCall call = product(ta ? swapped(a) : a, tb ? swapped(b) : b, ta, tb);
      expectClose(runOnOneAndTwoThreads(call)[0], want, 1e-12, fmt::format("form {}", form));
    }
  }
  KernelCall batch =
      product(randomTensor(kF64, {2, 3, 5, 4}, 1), randomTensor(kF64, {4, 6}, 2), false, false);
  batch.node.attributes["transBatchA"] = int64_t{1};
  EXPECT_THAT(refusalOf([&] { runKernel(batch); }), ::testing::HasSubstr("transBatchA"));
}

TEST(MatrixKernels, ProductsOverNothingAreZero) {
  const Tensor a{kF32, {2, 0}, {}}, b{kF32, {0, 3}, {}};
  EXPECT_EQ(numbersOf(runKernel(makeCall("", "MatMul", 13, {a, b}, {{kF32, {2, 3}}}))[0]),
            std::vector<double>(6, 0.0));
}

// Index of the element of a tensor of shape `from` that broadcasts to position `flat` of `to`.
size_t broadcastIndex(const Shape& from, const Shape& to, size_t flat) {
  const Shape strides = rowMajorStrides(from);
  size_t index = 0;
  for (size_t i = to.size(); i-- > 0;) {
    const auto at = static_cast<int64_t>(flat) % to[i];
    flat /= static_cast<size_t>(to[i]);
    const size_t missing = to.size() - from.size();
    if (i >= missing && from[i - missing] != 1) index += static_cast<size_t>(at * strides[i - missing]);
  }
  return index;
}

TEST(ElementwiseKernels, BroadcastEveryLayout) {
  const std::vector<std::pair<Shape, Shape>> layouts = {
      {{70, 600}, {70, 600}}, {{70, 600}, {}},           {{}, {3}},
      {{70, 600}, {600}},     {{70, 600}, {70, 1}},      {{70, 1}, {1, 600}},
      {{4, 1, 6}, {1, 5, 1}}, {{2, 3, 4, 5}, {3, 1, 5}}, {{1}, {1, 1}},
      {{50000}, {1}},         {{2, 40000}, {2, 1}},      {{0, 3}, {3}}};
  for (const auto& [a_shape, b_shape] : layouts) {
    const Shape out = broadcastShapes(a_shape, b_shape);
    const Tensor a = randomTensor(kF64, a_shape, 1), b = randomTensor(kF64, b_shape, 2);
    const std::vector<double> x = numbersOf(a), y = numbersOf(b);
    std::vector<double> want(elementCount(out));
    for (size_t i = 0; i < want.size(); ++i)
      want[i] = x[broadcastIndex(a_shape, out, i)] - y[broadcastIndex(b_shape, out, i)];
    const std::string what = shapeToString(a_shape) + shapeToString(b_shape);
    expectClose(runOnOneAndTwoThreads(makeCall("", "Sub", 14, {a, b}, {{kF64, out}}))[0], want, 0, what);
    std::vector<double> chosen(want.size());
    const Tensor condition = runKernel(
        makeCall("", "Greater", 13, {b, makeTensor<double>({}, {0.0})}, {{DataType::kBool, b_shape}}))[0];
    for (size_t i = 0; i < want.size(); ++i)
      chosen[i] = y[broadcastIndex(b_shape, out, i)] > 0 ? x[broadcastIndex(a_shape, out, i)] : -1;
    expectClose(runOnOneAndTwoThreads(makeCall(
                    "", "Where", 16, {condition, a, makeTensor<double>({1}, {-1.0})}, {{kF64, out}}))[0],
                chosen, 0, what);
  }
}

TEST(ElementwiseKernels, IntegerArithmeticWrapsAndDoesNotTrap) {
  const int64_t least = std::numeric_limits<int64_t>::min();
  const Tensor a = makeTensor<int64_t>({2}, {least, 7}), b = makeTensor<int64_t>({2}, {-1, -2});
  const std::vector<OutputSpec> out = {{DataType::kInt64, {2}}};
  EXPECT_EQ(elementsOf<int64_t>(runKernel(makeCall("", "Div", 14, {a, b}, out))[0]),
            (std::vector<int64_t>{least, -3}));
  EXPECT_EQ(elementsOf<int64_t>(runKernel(makeCall("", "Mod", 14, {a, b}, out))[0]),
            (std::vector<int64_t>{0, -1}));
  EXPECT_EQ(
      elementsOf<int64_t>(runKernel(makeCall("", "Sub", 14, {a, makeTensor<int64_t>({}, {1})}, out))[0])[0],
      std::numeric_limits<int64_t>::max());
  EXPECT_EQ(elementsOf<int64_t>(runKernel(
                makeCall("", "Abs", 14, {makeTensor<int64_t>({1}, {-5})}, {{DataType::kInt64, {1}}}))[0])[0],
            5);
}

TEST(ElementwiseKernels, CastSaturatesAndTakesNaNAsZero) {
  const Tensor x = makeTensor<float>({5}, {1e20f, -1e20f, std::nanf(""), -1.9f, 2147483648.0f});
  const auto cast = makeCall("", "Cast", 13, {x}, {{DataType::kInt32, {5}}}, {{"to", int64_t{6}}});
  const int32_t least = std::numeric_limits<int32_t>::min(), most = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(elementsOf<int32_t>(runKernel(cast)[0]), (std::vector<int32_t>{most, least, 0, -1, most}));
}

struct Function {
  const char* name;
  double (*exact)(double);
  double low, high, tolerance;
};

TEST(ElementwiseKernels, FloatFunctionsAreWithinAFewUnitsInTheLastPlace) {
  const Function functions[] = {
      {"Exp", std::exp, -87, 88, 2.5e-7},
      {"Tanh", std::tanh, -10, 10, 2.5e-7},
      {"Tanh", std::tanh, -0.01, 0.01, 2.5e-7},
      {"Erf", std::erf, -5, 5, 2.5e-7},
      {"Erf", std::erf, -0.01, 0.01, 2.5e-7},
      {"Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 80, 4e-7},
      {"Mish", [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }, -80, 80, 6e-7},
      {"Log", std::log, 1e-30, 1e6, 2.5e-7},
      {"Tan", std::tan, -1.57, 1.57, 2.5e-7},
      {"Tan", std::tan, -1e5, 1e5, 2.5e-7},
      {"Asin", std::asin, -1, 1, 2.5e-7},
      {"Asin", std::asin, -1e-3, 1e-3, 2.5e-7},
      {"Acos", std::acos, -1, 1, 2.5e-7},
      {"Atan", std::atan, -1e4, 1e4, 2.5e-7},
      {"Atan", std::atan, -1e-3, 1e-3, 2.5e-7},
      {"Sinh", std::sinh, -85, 85, 2.5e-7},
      {"Sinh", std::sinh, -1e-3, 1e-3, 2.5e-7},
      {"Cosh", std::cosh, -85, 85, 2.5e-7},
      {"Asinh", std::asinh, -1e6, 1e6, 2.5e-7},
      {"Asinh", std::asinh, -1e-3, 1e-3, 2.5e-7},
      {"Acosh", std::acosh, 1, 1.01, 2.5e-7},
      {"Acosh", std::acosh, 1, 1e6, 2.5e-7},
      {"Atanh", std::atanh, -1, 1, 2.5e-7},
      {"Atanh", std::atanh, -1e-3, 1e-3, 2.5e-7},
      {"Sqrt", std::sqrt, 0, 1e6, 1.2e-7}};
  for (const Function& f : functions) {
    const Tensor x = randomTensor(kF32, {100001}, 5, f.low, f.high);
    const Tensor y = runOnOneAndTwoThreads(makeCall("", f.name, 18, {x}, {{kF32, {100001}}}))[0];
    const std::vector<double> in = numbersOf(x), out = numbersOf(y);
    double worst = 0;
    for (size_t i = 0; i < in.size(); ++i)
      worst = std::max(worst, std::abs(out[i] - f.exact(in[i])) / std::max(std::abs(f.exact(in[i])), 1e-37));
    EXPECT_LE(worst, f.tolerance) << f.name;
  }
}

TEST(ElementwiseKernels, FloatFunctionsKeepTheirLimits) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const Tensor x = makeTensor<float>({6}, {inf, -inf, nan, 0.0f, 200.0f, -200.0f});
  const auto run = [&](const char* name) {
    return elementsOf<float>(runKernel(makeCall("", name, 13, {x}, {{kF32, {6}}}))[0]);
  };
  const std::vector<float> exp = run("Exp"), tanh = run("Tanh"), sigmoid = run("Sigmoid"), erf = run("Erf");
  EXPECT_EQ(exp[0], inf);
  EXPECT_EQ(exp[1], 0);
  EXPECT_EQ(exp[3], 1);
  EXPECT_EQ(exp[4], inf);
  EXPECT_EQ(exp[5], 0);
  for (const auto& function : {exp, tanh, sigmoid, erf}) EXPECT_TRUE(std::isnan(function[2]));
  for (const auto& function : {tanh, erf})
    EXPECT_EQ((std::vector<float>{function[0], function[1], function[3], function[4]}),
              (std::vector<float>{1, -1, 0, 1}));
  EXPECT_EQ((std::vector<float>{sigmoid[0], sigmoid[1], sigmoid[3]}), (std::vector<float>{1, 0, 0.5f}));
}

// Points where a formula in exponentials and logarithms overflows, cancels or leaves its domain.
TEST(ElementwiseKernels, HyperbolicAndInverseFunctionsAreRightAtTheirExtremes) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  struct Point {
    const char* name;
    double x, want;
  };
  const Point points[] = {{"Sinh", 1e-6, 1e-6},
                          {"Sinh", -inf, -inf},
                          {"Sinh", 1000, inf},
                          {"Cosh", -inf, inf},
                          {"Cosh", 1000, inf},
                          {"Cosh", 0, 1},
                          {"Asinh", -1e5, -12.206072645555174},
                          {"Asinh", 1e-6, 1e-6},
                          {"Asinh", -1e30, -69.770699970381},
                          {"Asinh", -inf, -inf},
                          {"Acosh", 1, 0},
                          {"Acosh", 1e30, 69.770699970381},
                          {"Acosh", inf, inf},
                          {"Acosh", 0.5, nan},
                          {"Atanh", 1e-6, 1e-6},
                          {"Atanh", 1, inf},
                          {"Atanh", -1, -inf},
                          {"Atanh", 1.5, nan},
                          {"Asin", 1, M_PI_2},
                          {"Asin", -1.5, nan},
                          {"Acos", -1, M_PI},
                          {"Acos", 1.5, nan},
                          {"Atan", -inf, -M_PI_2},
                          {"Tan", 1e-6, 1e-6},
                          {"Tan", inf, nan}};
  for (const Point& p : points) {
    for (const DataType type : {kF32, kF64}) {
      const Tensor x = convertTensor(makeTensor<double>({1}, {p.x}), type);
      const double y = numbersOf(runKernel(makeCall("", p.name, 18, {x}, {{type, {1}}}))[0])[0];
      SCOPED_TRACE(fmt::format("{}({}) in {}", p.name, p.x, dataTypeName(type)));
      if (std::isnan(p.want) || std::isinf(p.want))
        EXPECT_TRUE(y == p.want || (std::isnan(y) && std::isnan(p.want))) << y;
      else
        EXPECT_NEAR(y, p.want, (type == kF32 ? 2e-7 : 2e-12) * std::abs(p.want));
    }
  }
}

template <typename T>
std::vector<T> shifted(const char* direction, const std::vector<T>& x, const std::vector<T>& bits) {
  const Shape shape = {std::ssize(x)};
  return elementsOf<T>(runOnOneAndTwoThreads(
      makeCall("", "BitShift", 11, {makeTensor<T>(shape, x), makeTensor<T>(shape, bits)},
               {{dataTypeOf<T>(), shape}}, {{"direction", std::string(direction)}}))[0]);
}

TEST(ElementwiseKernels, ShiftsStayInTheirTypeAndEndInZero) {
  using Bytes = std::vector<uint8_t>;
  EXPECT_EQ(shifted<uint8_t>("LEFT", {1, 255, 129, 255, 255, 255}, {7, 1, 1, 8, 9, 255}),
            (Bytes{128, 254, 2, 0, 0, 0}));
  EXPECT_EQ(shifted<uint8_t>("RIGHT", {128, 255, 129, 255, 255, 255}, {7, 1, 0, 8, 9, 255}),
            (Bytes{1, 127, 129, 0, 0, 0}));
  EXPECT_EQ(shifted<int8_t>("LEFT", {1, -1, 64, -1}, {6, 4, 1, 8}), (std::vector<int8_t>{64, -16, -128, 0}));
  EXPECT_EQ(shifted<int32_t>("LEFT", {1, 1, 3, 1}, {4, 32, 31, 31}),
            (std::vector<int32_t>{16, 0, INT32_MIN, INT32_MIN}));
  EXPECT_EQ(shifted<int32_t>("RIGHT", {-1, -1, 256, INT32_MIN}, {28, 32, 4, 31}),
            (std::vector<int32_t>{15, 0, 16, 1}));
  EXPECT_EQ(shifted<int64_t>("LEFT", {1, 1, 1, 5}, {40, 64, 63, 0}),
            (std::vector<int64_t>{int64_t{1} << 40, 0, INT64_MIN, 5}));
  EXPECT_EQ(shifted<int64_t>("RIGHT", {int64_t{1} << 40, -1, -1, -1}, {40, 64, 63, 1}),
            (std::vector<int64_t>{1, 0, 1, INT64_MAX}));
}

TEST(ElementwiseKernels, BitsAreCombinedInEveryIntegerType) {
  const auto check = [](auto zero) {
    using T = decltype(zero);
    const Tensor x = makeTensor<T>({3, 1}, {T(0), T(90), T(-1)}), y = makeTensor<T>({2}, {T(15), T(-128)});
    const auto run = [&](const char* name) {
      return elementsOf<T>(runKernel(makeCall("", name, 18, {x, y}, {{dataTypeOf<T>(), {3, 2}}}))[0]);
    };
    EXPECT_EQ(run("BitwiseAnd"), (std::vector<T>{0, 0, T(10), 0, T(15), T(-128)}));
    EXPECT_EQ(run("BitwiseOr"), (std::vector<T>{T(15), T(-128), T(95), T(-38), T(-1), T(-1)}));
    EXPECT_EQ(run("BitwiseXor"), (std::vector<T>{T(15), T(-128), T(85), T(-38), T(-16), T(127)}));
    EXPECT_EQ(elementsOf<T>(runKernel(makeCall("", "BitwiseNot", 18, {x}, {{dataTypeOf<T>(), {3, 1}}}))[0]),
              (std::vector<T>{T(-1), T(-91), 0}));
  };
  check(int8_t{});
  check(uint8_t{});
  check(int32_t{});
  check(int64_t{});
}

}  // namespace
}  // namespace pipeshard::testing
