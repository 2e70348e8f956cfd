// What kernels refuse, when, and that the message names node, finding and remedy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/kernels/base/cpu_kernels.h"
#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const auto kF32 = DataType::kFloat32;

std::string creationRefusal(const KernelCall& call) {
  return refusalOf([&] { createKernel(call); });
}

TEST(KernelRefusals, NameAnOperatorWithoutKernel) {
  EXPECT_THAT(creationRefusal(makeCall("", "NonMaxSuppression", 11, {}, {})),
              AllOf(HasSubstr("tested"), HasSubstr("NonMaxSuppression"), HasSubstr("no kernel")));
}

TEST(KernelRefusals, NameTheTypeFoundAndTheSupportedOnes) {
  const Tensor pairs{DataType::kComplex64, {2}, std::vector<std::byte>(16)};
  EXPECT_THAT(creationRefusal(makeCall("", "Exp", 13, {pairs}, {{DataType::kComplex64, {2}}})),
              AllOf(HasSubstr("tested"), HasSubstr("complex64"), HasSubstr("float32, float64")));
}

TEST(KernelRefusals, WantShapeLikeInputsAsConstants) {
  const Tensor x = randomTensor(kF32, {4}, 1), one = makeTensor<int64_t>({1}, {1}),
               three = makeTensor<int64_t>({1}, {3});
  EXPECT_THAT(creationRefusal(makeCall("", "Slice", 13, {x, one, three}, {{kF32, {2}}})),
              AllOf(HasSubstr("tested"), HasSubstr("needs a constant starts")));
  EXPECT_THAT(creationRefusal(makeCall("", "ReduceSum", 13, {x, one}, {{kF32, {1}}})),
              HasSubstr("needs a constant axes"));
}

TEST(KernelRefusals, NoticeShapesThatDoNotFitTheInputs) {
  const Tensor a = randomTensor(kF32, {2, 3}, 1), b = randomTensor(kF32, {4, 5}, 2);
  EXPECT_THAT(creationRefusal(makeCall("", "MatMul", 13, {a, b}, {{kF32, {2, 5}}})),
              AllOf(HasSubstr("[2,3]"), HasSubstr("[4,5]")));
  EXPECT_THAT(creationRefusal(makeCall("", "Add", 13, {a, a}, {{kF32, {3, 2}}})),
              AllOf(HasSubstr("[3,2]"), HasSubstr("[2,3]")));
  EXPECT_THAT(creationRefusal(makeCall("", "Reshape", 13, {a, makeTensor<int64_t>({1}, {7})}, {{kF32, {7}}})),
              HasSubstr("[7]"));
}

TEST(KernelRefusals, NameAxesOutsideOfTheTensor) {
  const Tensor x = randomTensor(kF32, {2, 3}, 1);
  EXPECT_THAT(creationRefusal(makeCall("", "Softmax", 13, {x}, {{kF32, {2, 3}}}, {{"axis", int64_t{2}}})),
              AllOf(HasSubstr("tested"), HasSubstr("axis 2")));
}

TEST(KernelRefusals, NameUnsupportedAttributes) {
  const Tensor x = randomTensor(kF32, {2}, 1);
  EXPECT_THAT(creationRefusal(
                  makeCall("", "Gelu", 20, {x}, {{kF32, {2}}}, {{"approximate", std::string("sigmoid")}})),
              AllOf(HasSubstr("sigmoid"), HasSubstr("'none' and 'tanh'")));
  const Tensor bits = makeTensor<uint8_t>({1}, {1});
  EXPECT_THAT(creationRefusal(makeCall("", "BitShift", 11, {bits, bits}, {{DataType::kUint8, {1}}})),
              AllOf(HasSubstr("direction"), HasSubstr("'LEFT' and 'RIGHT'")));
  EXPECT_THAT(creationRefusal(makeCall("", "LpNormalization", 18, {x}, {{kF32, {2}}}, {{"p", int64_t{3}}})),
              AllOf(HasSubstr("p is 3"), HasSubstr("1 and 2")));
}

TEST(KernelRefusals, NameIndicesOutOfRangeAtRunTime) {
  const Tensor data = randomTensor(kF32, {3, 2}, 1);
  for (int64_t bad : {3, -4}) {
    const Tensor indices = makeTensor<int64_t>({2}, {1, bad});
    const auto gather = makeCall("", "Gather", 13, {data, indices}, {{kF32, {2, 2}}}, {{"axis", int64_t{0}}});
    EXPECT_THAT(refusalOf([&] { runKernel(gather); }),
                AllOf(HasSubstr("tested"), HasSubstr(std::to_string(bad)), HasSubstr("position 1"),
                      HasSubstr("[-3, 3)")));
    const auto grad = makeCall("pipeshard", "GatherGrad", 1,
                               {randomTensor(kF32, {2, 2}, 2), indices, makeTensor<int64_t>({2}, {3, 2})},
                               {{kF32, {3, 2}}}, {}, {2});
    EXPECT_THAT(refusalOf([&] { runKernel(grad); }), HasSubstr("[-3, 3)"));
    const Tensor pairs = makeTensor<int64_t>({1, 1}, {bad});
    EXPECT_THAT(refusalOf([&] {
                  runKernel(makeCall("", "GatherND", 13, {data, pairs}, {{kF32, {1, 2}}}));
                }),
                HasSubstr("[-3, 3)"));
    const auto scatter =
        makeCall("", "ScatterND", 18, {data, pairs, randomTensor(kF32, {1, 2}, 3)}, {{kF32, {3, 2}}});
    EXPECT_THAT(refusalOf([&] { runKernel(scatter); }), HasSubstr("[-3, 3)"));
    const Tensor elements = makeTensor<int64_t>({1, 2}, {0, bad});
    EXPECT_THAT(refusalOf([&] {
                  runKernel(makeCall("", "GatherElements", 13, {data, elements}, {{kF32, {1, 2}}}));
                }),
                HasSubstr("[-3, 3)"));
    const auto scatter_elements = makeCall("", "ScatterElements", 18,
                                           {data, elements, randomTensor(kF32, {1, 2}, 3)}, {{kF32, {3, 2}}});
    EXPECT_THAT(refusalOf([&] { runKernel(scatter_elements); }), HasSubstr("[-3, 3)"));
  }
}

TEST(KernelRefusals, NameLabelsOutOfRangeAtRunTime) {
  const Tensor scores = randomTensor(kF32, {2, 3}, 1);
  for (int64_t bad : {3, -1, -100}) {
    const Tensor labels = makeTensor<int64_t>({2}, {0, bad});
    const auto loss = makeCall("", "SoftmaxCrossEntropyLoss", 13, {scores, labels}, {{kF32, {}}});
    EXPECT_THAT(refusalOf([&] { runKernel(loss); }),
                AllOf(HasSubstr("tested"), HasSubstr(std::to_string(bad)), HasSubstr("[0, 3)")));
    const Tensor rows = randomTensor(kF32, {2}, 2, 1, 2);
    const auto grad = makeCall("pipeshard", "CrossEntropyLossGrad", 1,
                               {makeTensor<float>({}, {1}), scores, rows, rows, labels}, {{kF32, {2, 3}}});
    EXPECT_THAT(refusalOf([&] { runKernel(grad); }), HasSubstr("[0, 3)"));
  }
}

TEST(KernelRefusals, NameIntegerDivisionByZero) {
  const Tensor a = makeTensor<int64_t>({2}, {4, 5}), b = makeTensor<int64_t>({2}, {2, 0});
  for (const char* name : {"Div", "Mod"}) {
    EXPECT_THAT(refusalOf([&] {
                  runKernel(makeCall("", name, 13, {a, b}, {{DataType::kInt64, {2}}}));
                }),
                HasSubstr("division by zero"));
  }
}

TEST(KernelRegistry, ListsWhatItHas) {
  const std::vector<std::string> names = cpuKernels().operators();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_THAT(names, ::testing::IsSupersetOf({"::MatMul", "::SoftmaxCrossEntropyLoss", "pipeshard::AdamW",
                                              "pipeshard::GatherGrad"}));
  EXPECT_TRUE(cpuKernels().has("pipeshard", "GeluGrad"));
  EXPECT_FALSE(cpuKernels().has("", "GeluGrad"));
}

}  // namespace
}  // namespace pipeshard::testing
