// Reductions, softmax, transpositions and copies against index arithmetic, on sizes with many blocks and odd
// edges.
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {
namespace {

const auto kF32 = DataType::kFloat32;
const auto kF64 = DataType::kFloat64;

std::vector<int64_t> indexOf(const Shape& shape, int64_t flat) {
  std::vector<int64_t> index(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    index[i] = flat % shape[i];
    flat /= shape[i];
  }
  return index;
}

int64_t flatOf(const Shape& shape, const std::vector<int64_t>& index) {
  const Shape strides = rowMajorStrides(shape);
  return std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0});
}

struct ReduceCase {
  Shape shape;
  std::vector<int64_t> axes;
};

const std::vector<ReduceCase>& reduceCases() {
  static const std::vector<ReduceCase> cases = {{{300, 129}, {1}},      {{300, 129}, {0}},
                                                {{300, 129}, {0, 1}},   {{200001}, {0}},
                                                {{2, 70000}, {1}},      {{5, 6, 7, 8}, {0, 2}},
                                                {{5, 6, 7, 8}, {1, 3}}, {{4, 33, 65}, {0, 1}},
                                                {{3, 1, 5}, {1}},       {{1}, {0}}};
  return cases;
}

TEST(ReduceKernels, SumsEqualPlainLoopsForEverySetOfAxes) {
  for (const ReduceCase& c : reduceCases()) {
    Shape out = c.shape;
    for (int64_t axis : c.axes) out[axis] = 1;
    const Tensor x = randomTensor(kF64, c.shape, 3, 0, 1);
    const std::vector<double> numbers = numbersOf(x);
    std::vector<double> sum(elementCount(out)), most(sum.size(), -1), square(sum.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      std::vector<int64_t> index = indexOf(c.shape, i);
      for (int64_t axis : c.axes) index[axis] = 0;
      const size_t o = flatOf(out, index);
      sum[o] += numbers[i];
      square[o] += numbers[i] * numbers[i];
      most[o] = std::max(most[o], numbers[i]);
    }
    const auto count = static_cast<double>(numbers.size()) / static_cast<double>(sum.size());
    const Tensor axes = makeTensor<int64_t>({std::ssize(c.axes)}, c.axes);
    for (DataType type : {kF64, kF32}) {
      const double tolerance = type == kF64 ? 1e-13 : 1e-6;
      const auto run = [&](const char* name) {
        return numbersOf(runOnOneAndTwoThreads(
            makeCall("", name, 18, {convertTensor(x, type), axes}, {{type, out}}, {}, {1}))[0]);
      };
      const auto sums = run("ReduceSum"), means = run("ReduceMean"), mosts = run("ReduceMax"),
                 norms = run("ReduceL2"), squares = run("ReduceSumSquare");
      for (size_t o = 0; o < sum.size(); ++o) {
        ASSERT_NEAR(sums[o], sum[o], tolerance * (1 + sum[o])) << shapeToString(c.shape);
        ASSERT_NEAR(means[o], sum[o] / count, tolerance) << shapeToString(c.shape);
        ASSERT_NEAR(norms[o], std::sqrt(square[o]), tolerance * (1 + sum[o])) << shapeToString(c.shape);
        ASSERT_NEAR(squares[o], square[o], tolerance * (1 + sum[o])) << shapeToString(c.shape);
        ASSERT_NEAR(mosts[o], most[o], type == kF64 ? 0 : 1e-7) << shapeToString(c.shape);
      }
    }
  }
}

TEST(ReduceKernels, TheSumOfNothingIsZero) {
  const Tensor x{kF32, {2, 0}, {}};
  EXPECT_EQ(numbersOf(runKernel(makeCall("", "ReduceSum", 13, {x, makeTensor<int64_t>({1}, {1})},
                                         {{kF32, {2, 1}}}, {}, {1}))[0]),
            (std::vector<double>{0, 0}));
}

TEST(SoftmaxKernels, RowsSumToOneAndOrderIsKeptWhateverTheAxis) {
  const Shape shape = {9, 130, 70};
  const Tensor x = randomTensor(kF32, shape, 4, -30, 30);
  for (int64_t axis : {0, 1, 2}) {
    const Tensor y =
        runOnOneAndTwoThreads(makeCall("", "Softmax", 13, {x}, {{kF32, shape}}, {{"axis", axis}}))[0];
    const Tensor log =
        runOnOneAndTwoThreads(makeCall("", "LogSoftmax", 13, {x}, {{kF32, shape}}, {{"axis", axis}}))[0];
    Shape sums_shape = shape;
    sums_shape[axis] = 1;
    const std::vector<double> in = numbersOf(x), out = numbersOf(y), logs = numbersOf(log);
    std::vector<double> total(elementCount(sums_shape));
    const auto group = [&](size_t i) {
      std::vector<int64_t> index = indexOf(shape, i);
      index[axis] = 0;
      return static_cast<size_t>(flatOf(sums_shape, index));
    };
    for (size_t i = 0; i < in.size(); ++i) total[group(i)] += std::exp(in[i]);
    for (size_t i = 0; i < in.size(); ++i) {
      ASSERT_NEAR(out[i], std::exp(in[i]) / total[group(i)], 1e-6);
      ASSERT_NEAR(logs[i], in[i] - std::log(total[group(i)]), 1e-5 * (1 + std::abs(logs[i])));
    }
  }
}

TEST(TransposeKernel, EqualsIndexArithmeticForManyPermutationsAndTypes) {
  const std::vector<std::pair<Shape, std::vector<int64_t>>> cases = {{{67, 130}, {1, 0}},
                                                                     {{3, 65, 33}, {0, 2, 1}},
                                                                     {{3, 65, 33}, {2, 1, 0}},
                                                                     {{3, 65, 33}, {1, 0, 2}},
                                                                     {{2, 17, 5, 16}, {0, 2, 1, 3}},
                                                                     {{2, 17, 5, 16}, {0, 2, 3, 1}},
                                                                     {{2, 17, 5, 16}, {3, 2, 1, 0}},
                                                                     {{2, 3, 4, 5, 6}, {4, 0, 3, 1, 2}},
                                                                     {{1, 40, 1, 50}, {3, 2, 1, 0}},
                                                                     {{7}, {0}},
                                                                     {{0, 3}, {1, 0}}};
  for (const auto& [shape, permutation] : cases) {
    Shape out;
    for (int64_t axis : permutation) out.push_back(shape[axis]);
    for (DataType type : {kF32, kF64}) {
      const Tensor x = randomTensor(type, shape, 7);
      const Tensor y = runOnOneAndTwoThreads(
          makeCall("", "Transpose", 13, {x}, {{type, out}}, {{"perm", permutation}}))[0];
      const std::vector<double> from = numbersOf(x), to = numbersOf(y);
      for (size_t i = 0; i < to.size(); ++i) {
        const std::vector<int64_t> index = indexOf(out, i);
        std::vector<int64_t> source(index.size());
        for (size_t a = 0; a < index.size(); ++a) source[permutation[a]] = index[a];
        ASSERT_EQ(to[i], from[flatOf(shape, source)]) << shapeToString(shape) << " element " << i;
      }
    }
  }
}

TEST(CopyKernels, ConcatOfASplitIsTheInputOnEveryAxis) {
  const Shape shape = {6, 50, 70};
  const Tensor x = randomTensor(kF32, shape, 8);
  for (int64_t axis : {0, 1, 2}) {
    Shape first = shape, second = shape;
    first[axis] = 4;
    second[axis] = shape[axis] - 4;
    const Tensor sizes = makeTensor<int64_t>({2}, {4, second[axis]});
    const std::vector<Tensor> parts = runOnOneAndTwoThreads(
        makeCall("", "Split", 13, {x, sizes}, {{kF32, first}, {kF32, second}}, {{"axis", axis}}, {1}));
    const Tensor joined = runOnOneAndTwoThreads(
        makeCall("", "Concat", 13, {parts[0], parts[1]}, {{kF32, shape}}, {{"axis", axis}}))[0];
    EXPECT_TRUE(joined.bytes == x.bytes) << axis;
    const Tensor from = makeTensor<int64_t>({1}, {4}), to = makeTensor<int64_t>({1}, {INT64_MAX}),
                 on = makeTensor<int64_t>({1}, {axis});
    const Tensor sliced = runOnOneAndTwoThreads(
        makeCall("", "Slice", 13, {x, from, to, on}, {{kF32, second}}, {}, {1, 2, 3}))[0];
    EXPECT_TRUE(sliced.bytes == parts[1].bytes) << axis;
  }
}

TEST(CopyKernels, SplitSkipsAbsentOutputs) {
  const Tensor x = makeTensor<float>({4}, {1, 2, 3, 4});
  const std::vector<Tensor> parts =
      runKernel(makeCall("", "Split", 18, {x}, {{}, {kF32, {2}}}, {{"num_outputs", int64_t{2}}}));
  EXPECT_EQ(elementsOf<float>(parts[1]), (std::vector<float>{3, 4}));
}

TEST(LossKernels, GiveTheSameLossWithAndWithoutTheLogProbabilities) {
  const Tensor scores = randomTensor(kF32, {64, 1000}, 9, -5, 5),
               labels = randomTensor(DataType::kInt64, {64}, 10, 0, 1000);
  const auto with = runOnOneAndTwoThreads(
      makeCall("", "SoftmaxCrossEntropyLoss", 13, {scores, labels}, {{kF32, {}}, {kF32, {64, 1000}}}));
  const auto without =
      runOnOneAndTwoThreads(makeCall("", "SoftmaxCrossEntropyLoss", 13, {scores, labels}, {{kF32, {}}}));
  EXPECT_TRUE(with[0].bytes == without[0].bytes);
}

TEST(LpNormalizationKernels, EqualPlainLoopsOnEveryAxisWithoutOverflow) {
  const Shape shape = {40, 33, 70};
  for (DataType type : {kF64, kF32}) {
    Tensor x = convertTensor(randomTensor(kF64, shape, 8, -1e30, 1e30), type);
    for (int64_t axis : {0, 1, 2}) {
      for (int64_t p : {1, 2}) {
        const std::vector<double> numbers = numbersOf(x);
        Shape rest = shape;
        rest[axis] = 1;
        std::vector<double> norms(elementCount(rest));
        const auto normOf = [&](size_t i) -> double& {
          std::vector<int64_t> index = indexOf(shape, i);
          index[axis] = 0;
          return norms[flatOf(rest, index)];
        };
        for (size_t i = 0; i < numbers.size(); ++i) normOf(i) += std::pow(std::abs(numbers[i]), p);
        const KernelCall call =
            makeCall("", "LpNormalization", 18, {x}, {{type, shape}}, {{"axis", axis}, {"p", p}});
        const std::vector<double> y = numbersOf(runOnOneAndTwoThreads(call)[0]);
        for (size_t i = 0; i < y.size(); ++i)
          ASSERT_NEAR(y[i], numbers[i] / std::pow(normOf(i), 1.0 / static_cast<double>(p)),
                      type == kF64 ? 1e-14 : 1e-7)
              << axis << " " << p;
      }
    }
  }
}

// The gradient of the scale holds the moments: of channels far from zero, one of which begins with an element
// far from all others.
TEST(BatchNormalizationKernels, FindMomentsOfChannelsFarFromZero) {
  constexpr int64_t kBatch = 3, kChannels = 2, kInner = 50, kCount = kBatch * kInner;
  const Shape shape{kBatch, kChannels, kInner};
  for (const DataType type : {kF32, kF64}) {
    std::vector<double> noise = numbersOf(randomTensor(kF64, shape, 7, -1, 1));
    for (double& number : noise) number += 1e4;
    noise[0] = 0;
    const Tensor x = convertTensor(makeTensor<double>(shape, noise), type);
    const Tensor dy = randomTensor(type, shape, 8, -1, 1);
    const std::vector<double> numbers = numbersOf(x), slopes = numbersOf(dy);
    const Tensor got = runKernel(makeCall(std::string(kPipeshardDomain), "BatchNormalizationWeightGrad", 1,
                                          {dy, x}, {{type, {kChannels}}, {type, {kChannels}}}))[0];
    for (int64_t c = 0; c < kChannels; ++c) {
      const auto sumOver = [&](const auto& term) {
        long double sum = 0;
        for (int64_t i = 0; i < kCount; ++i) {
          const size_t at = (i / kInner * kChannels + c) * kInner + i % kInner;
          sum += term(static_cast<long double>(numbers[at]), static_cast<long double>(slopes[at]));
        }
        return sum;
      };
      const long double mean = sumOver([](auto x, auto) { return x; }) / kCount;
      const long double variance = sumOver([&](auto x, auto) { return (x - mean) * (x - mean); }) / kCount;
      const long double dot = sumOver([&](auto x, auto dy) { return dy * (x - mean); });
      const auto want = static_cast<double>(dot / std::sqrt(variance + 1e-5L));
      EXPECT_NEAR(numbersOf(got)[c], want, std::abs(want) * (type == kF32 ? 1e-6 : 1e-11)) << "channel " << c;
    }
  }
}

// Where only the scale, or only the bias, is trained.
TEST(BatchNormalizationKernels, GradientsOfWeightsMayBeLeftOut) {
  const Shape shape{4, 3, 5, 20};
  const Tensor x = randomTensor(kF32, shape, 7, -1, 1), dy = randomTensor(kF32, shape, 8, -1, 1);
  const OutputSpec channels{kF32, {3}};
  const auto gradients = [&](std::vector<OutputSpec> outputs) {
    return runKernel(makeCall(std::string(kPipeshardDomain), "BatchNormalizationWeightGrad", 1, {dy, x},
                              std::move(outputs)));
  };
  const std::vector<Tensor> both = gradients({channels, channels});
  EXPECT_EQ(gradients({{}, channels})[1].bytes, both[1].bytes);
  EXPECT_EQ(gradients({channels, {}})[0].bytes, both[0].bytes);
}

TEST(BatchNormalizationKernels, HideNoNan) {
  const Tensor x = makeTensor<double>({2, 1, 2}, {1, 2, NAN, 4});
  const Tensor one = makeTensor<double>({1}, {1}), zero = makeTensor<double>({1}, {0});
  const std::vector<Tensor> got =
      runKernel(makeCall("", "BatchNormalization", 15, {x, one, zero, zero, one},
                         {{kF64, {2, 1, 2}}, {kF64, {1}}, {kF64, {1}}}, {{"training_mode", int64_t{1}}}));
  for (const Tensor& output : got) {
    for (const double number : numbersOf(output)) EXPECT_TRUE(std::isnan(number)) << number;
  }
}

}  // namespace
}  // namespace pipeshard::testing
