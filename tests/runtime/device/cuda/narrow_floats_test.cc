// float16 and bfloat16 on the CUDA module, on the stand-in of NVIDIA's libraries (tests/standin): cast, and
// widened by kernels that have no loops for them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ir/base/convert.h"
#include "ir/base/error.h"
#include "tests/expect_error.h"
#include "tests/runtime/device/cuda/like_the_cpu.h"

namespace pipeshard::testing {
namespace {

constexpr DataType kFloat = DataType::kFloat32;
constexpr DataType kDouble = DataType::kFloat64;
constexpr DataType kLong = DataType::kInt64;

Tensor floats(Shape shape, uint64_t seed = 1) { return randomTensor(kFloat, std::move(shape), seed); }
Tensor longs(std::vector<int64_t> values) { return makeTensor<int64_t>({std::ssize(values)}, values); }

void check(const std::string& op, std::vector<std::optional<Tensor>> inputs, OutputSpec output,
           std::map<std::string, Attribute> attributes = {}, std::vector<size_t> constants = {}) {
  SCOPED_TRACE(op);
  expectLikeTheCpu(
      makeCall("", op, 18, std::move(inputs), {output}, std::move(attributes), std::move(constants)));
}

Tensor narrowed(const Tensor& tensor, DataType type) {
  Tensor narrow{type, tensor.shape, std::vector<std::byte>(byteCount(type, tensor.shape))};
  convertElements(tensor.type, tensor.bytes.data(), type, narrow.bytes.data(), elementCount(tensor.shape));
  return narrow;
}

// Bit for bit: every float16 and bfloat16, and numbers that are rounded to them.
TEST(CudaNarrowFloats, AreCastAsTheCpuDoes) {
  std::vector<double> numbers{0,       -0.0,          65504,     65519.99, 65520,  -1e30,
                              0x1p-25, 0x1.00001p-25, 2049,      2051,     1e-300, 3.4e38,
                              -3.4e39, INFINITY,      -INFINITY, NAN,      0.1,    -7.5};
  const Tensor more = randomTensor(kDouble, {500}, 3, -70000, 70000), small = randomTensor(kDouble, {500}, 4);
  for (const Tensor* tensor : {&more, &small})
    for (const double number : numbersOf(*tensor)) numbers.push_back(number);
  const Tensor wide = makeTensor<double>({std::ssize(numbers)}, numbers);
  for (const DataType narrow : {DataType::kFloat16, DataType::kBfloat16}) {
    Tensor every{narrow, {65536}, std::vector<std::byte>(2 * 65536)};
    for (size_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      std::memcpy(every.bytes.data() + 2 * i, &bits, sizeof bits);
    }
    for (const DataType type : {kFloat, kDouble, DataType::kInt32, kLong, DataType::kInt8, DataType::kUint8,
                                DataType::kBool, DataType::kFloat16, DataType::kBfloat16}) {
      const auto expect_equal = [&](const Tensor& from, DataType to) {
        const KernelCall call =
            makeCall("", "Cast", 13, {from}, {{to, from.shape}}, {{"to", static_cast<int64_t>(to)}});
        const Tensor want = runKernel(call)[0], got = runOnDevice(call)[0];
        const std::vector<double> a = numbersOf(got), b = numbersOf(want);
        for (size_t i = 0; i < b.size(); ++i) {
          if (std::isnan(a[i]) && std::isnan(b[i])) continue;
          ASSERT_TRUE(a[i] == b[i] && std::signbit(a[i]) == std::signbit(b[i]))
              << dataTypeName(from.type) << " to " << dataTypeName(to) << ", element " << i << ": " << a[i]
              << ", not " << b[i];
        }
      };
      expect_equal(every, type);
      expect_equal(narrowed(wide, type), narrow);
    }
  }
}

TEST(CudaNarrowFloats, AreWidened) {
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    const auto some = [&](Shape shape, uint64_t seed = 1) { return narrowed(floats(shape, seed), type); };
    check("Add", {some({3, 300}), some({300}, 2)}, {type, {3, 300}});
    check("Tanh", {some({300})}, {type, {300}});
    check("Softmax", {some({3, 300})}, {type, {3, 300}});
    check("MatMul", {some({20, 30}), some({30, 40}, 2)}, {type, {20, 40}});
    check("Transpose", {some({30, 40})}, {type, {40, 30}}, {{"perm", std::vector<int64_t>{1, 0}}});
    check("ConstantOfShape", {longs({2, 3})}, {type, {2, 3}},
          {{"value", Constant{type, {1}, narrowed(makeTensor<float>({1}, {7}), type).bytes}}}, {0});
    check("Conv", {some({2, 3, 7, 6}), some({4, 3, 3, 3}, 2)}, {type, {2, 4, 5, 4}});
    // Wrong data are found behind the widening, too.
    const KernelCall wrong =
        makeCall("", "SoftmaxCrossEntropyLoss", 13, {some({3, 4}), longs({0, 4, -1})}, {{type, {}}});
    const std::string want = messageOf([&] { runKernel(wrong); });
    EXPECT_NE(want, "");
    EXPECT_EQ(messageOf([&] { runOnDevice(wrong); }), want);
    // A weight's gradient: bfloat16 factors, float32 sums over microbatches.
    KernelCall gradient = makeCall("", "MatMul", 13, {some({20, 30}), some({30, 40}, 2)}, {{type, {20, 40}}});
    gradient.outputs[0].type = kFloat;
    const Tensor total = floats({20, 40}, 5);
    std::unique_ptr<Kernel> kernel = cuda().kernels().create(CallSpec(gradient).spec);
    ASSERT_TRUE(kernel->mayAccumulate(0));
    const std::vector<double> got = numbersOf(runOnCuda(gradient, *kernel, {}, &total)[0]);
    const std::vector<double> before = numbersOf(total), product = numbersOf(runKernel(gradient)[0]);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], before[i] + product[i], 1e-5);
  }
}

TEST(CudaNarrowFloats, OtherTypesThatTheCpuWidensAreRefusedByName) {
  const Tensor shorts{DataType::kInt16, {3}, std::vector<std::byte>(6)};
  const KernelCall call = makeCall("", "Add", 14, {shorts, shorts}, {{DataType::kInt16, {3}}});
  EXPECT_ERROR(runOnDevice(call), ErrorCode::kBadModel, "int16");
  const Tensor small{DataType::kFloat8E5M2, {3}, std::vector<std::byte>(3)};
  const KernelCall cast = makeCall("", "Cast", 19, {small}, {{DataType::kFloat16, {3}}},
                                   {{"to", static_cast<int64_t>(DataType::kFloat16)}});
  EXPECT_ERROR(runOnDevice(cast), ErrorCode::kBadModel,
               "a cast from float8_e5m2 to float16; this device knows");
}

}  // namespace
}  // namespace pipeshard::testing
