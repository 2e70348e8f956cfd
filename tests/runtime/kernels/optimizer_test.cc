// Optimizer kernels against the formulas of docs/operators.md, written out with doubles.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {
namespace {

constexpr int64_t kCount = 40000;  // more than one block
const Shape kShape = {8, kCount / 8};

struct Numbers {
  std::vector<double> param = randomNumbers(kCount, 1), grad = randomNumbers(kCount, 2),
                      first = randomNumbers(kCount, 3), second = randomNumbers(kCount, 4, 0, 1);
};

std::optional<Tensor> of(DataType type, const Shape& shape, const std::vector<double>& numbers) {
  return convertTensor(makeTensor<double>(shape, numbers), type);
}

std::optional<Tensor> scalar(DataType type, double number) { return of(type, {}, {number}); }

void expectClose(const Tensor& got, const std::vector<double>& want, DataType type, const char* what) {
  const double tolerance = type == DataType::kFloat64 ? 1e-14 : 2e-6;
  const std::vector<double> numbers = numbersOf(got);
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(numbers[i], want[i], tolerance * (1 + std::abs(want[i]))) << what << " element " << i;
}

// Runs on 1 and 2 threads and with every state in place.
void check(const KernelCall& call, const std::vector<std::vector<double>>& want, DataType type) {
  const std::vector<Tensor> results = runOnOneAndTwoThreads(call);
  for (size_t o = 0; o < want.size(); ++o) expectClose(results[o], want[o], type, call.node.op_type.c_str());
  const std::unique_ptr<Kernel> kernel = createKernel(call);
  EXPECT_TRUE(kernel->mayRunInPlace(0, 0));
  for (size_t i = 0; i < 4; ++i) {
    for (size_t o = 0; o < want.size(); ++o) {
      if (kernel->mayRunInPlace(i, o)) {
        expectClose(runInPlace(call, *kernel, i, o)[o], want[o], type, "in place");
      }
    }
  }
}

TEST(OptimizerKernels, SgdFollowsItsFormula) {
  const Numbers n;
  std::vector<double> want(kCount);
  for (size_t i = 0; i < want.size(); ++i) want[i] = n.param[i] - 0.1 * (n.grad[i] + 0.01 * n.param[i]);
  for (DataType type : {DataType::kFloat64, DataType::kFloat32}) {
    check(
        makeCall("pipeshard", "SGD", 1,
                 {of(type, kShape, n.param), of(type, kShape, n.grad), scalar(type, 0.1), scalar(type, 0.01)},
                 {{type, kShape}}),
        {want}, type);
  }
}

TEST(OptimizerKernels, SgdMomentumFollowsItsFormulaWithAndWithoutNesterov) {
  const Numbers n;
  for (int64_t nesterov : {0, 1}) {
    std::vector<double> param(kCount), velocity(kCount);
    for (size_t i = 0; i < param.size(); ++i) {
      const double g = n.grad[i] + 0.01 * n.param[i];
      velocity[i] = 0.9 * n.first[i] + g;
      param[i] = n.param[i] - 0.1 * (nesterov ? g + 0.9 * velocity[i] : velocity[i]);
    }
    for (DataType type : {DataType::kFloat64, DataType::kFloat32}) {
      check(makeCall("pipeshard", "SGDMomentum", 1,
                     {of(type, kShape, n.param), of(type, kShape, n.grad), of(type, kShape, n.first),
                      scalar(type, 0.1), scalar(type, 0.9), scalar(type, 0.01)},
                     {{type, kShape}, {type, kShape}}, {{"nesterov", nesterov}}),
            {param, velocity}, type);
    }
  }
}

TEST(OptimizerKernels, AdamAndAdamWFollowTheirFormulas) {
  const Numbers n;
  const double rate = 1e-3, b1 = 0.9, b2 = 0.999, epsilon = 1e-8, decay = 0.01;
  for (bool decoupled : {false, true}) {
    for (int64_t step : {1, 7}) {
      std::vector<double> param(kCount), m(kCount), v(kCount);
      for (size_t i = 0; i < param.size(); ++i) {
        const double g = n.grad[i] + (decoupled ? 0 : decay * n.param[i]);
        m[i] = b1 * n.first[i] + (1 - b1) * g;
        v[i] = b2 * n.second[i] + (1 - b2) * g * g;
        const auto t = static_cast<double>(step);
        param[i] = n.param[i] * (decoupled ? 1 - rate * decay : 1) -
                   rate / (1 - std::pow(b1, t)) * m[i] /
                       (std::sqrt(v[i]) / std::sqrt(1 - std::pow(b2, t)) + epsilon);
      }
      for (DataType type : {DataType::kFloat64, DataType::kFloat32}) {
        check(makeCall("pipeshard", decoupled ? "AdamW" : "Adam", 1,
                       {of(type, kShape, n.param), of(type, kShape, n.grad), of(type, kShape, n.first),
                        of(type, kShape, n.second), makeTensor<int64_t>({}, {step}), scalar(type, rate),
                        scalar(type, b1), scalar(type, b2), scalar(type, epsilon), scalar(type, decay)},
                       {{type, kShape}, {type, kShape}, {type, kShape}}),
              {param, m, v}, type);
      }
    }
  }
}

TEST(OptimizerKernels, RmsPropFollowsItsFormulaWithAndWithoutMomentum) {
  const Numbers n;
  const double rate = 0.01, alpha = 0.99, epsilon = 1e-8, decay = 0.01, momentum = 0.9;
  std::vector<double> param(kCount), v(kCount), with_momentum(kCount), velocity(kCount);
  for (size_t i = 0; i < param.size(); ++i) {
    const double g = n.grad[i] + decay * n.param[i];
    v[i] = alpha * n.second[i] + (1 - alpha) * g * g;
    const double direction = g / (std::sqrt(v[i]) + epsilon);
    param[i] = n.param[i] - rate * direction;
    velocity[i] = momentum * n.first[i] + direction;
    with_momentum[i] = n.param[i] - rate * velocity[i];
  }
  for (DataType type : {DataType::kFloat64, DataType::kFloat32}) {
    const auto tensor = [&](const std::vector<double>& numbers) { return of(type, kShape, numbers); };
    check(makeCall("pipeshard", "RMSProp", 1,
                   {tensor(n.param), tensor(n.grad), tensor(n.second), scalar(type, rate),
                    scalar(type, alpha), scalar(type, epsilon), scalar(type, decay)},
                   {{type, kShape}, {type, kShape}}),
          {param, v}, type);
    check(makeCall("pipeshard", "RMSPropMomentum", 1,
                   {tensor(n.param), tensor(n.grad), tensor(n.second), tensor(n.first), scalar(type, rate),
                    scalar(type, alpha), scalar(type, epsilon), scalar(type, decay), scalar(type, momentum)},
                   {{type, kShape}, {type, kShape}, {type, kShape}}),
          {with_momentum, v, velocity}, type);
  }
}

TEST(OptimizerKernels, AdagradFollowsItsFormula) {
  const Numbers n;
  const double rate = 0.01, rate_decay = 0.1, epsilon = 1e-10, decay = 0.01;
  for (int64_t step : {1, 7}) {
    std::vector<double> param(kCount), sum(kCount);
    for (size_t i = 0; i < param.size(); ++i) {
      const double g = n.grad[i] + decay * n.param[i];
      sum[i] = n.second[i] + g * g;
      param[i] = n.param[i] -
                 rate / (1 + static_cast<double>(step - 1) * rate_decay) * g / (std::sqrt(sum[i]) + epsilon);
    }
    for (DataType type : {DataType::kFloat64, DataType::kFloat32}) {
      check(makeCall("pipeshard", "Adagrad", 1,
                     {of(type, kShape, n.param), of(type, kShape, n.grad), of(type, kShape, n.second),
                      makeTensor<int64_t>({}, {step}), scalar(type, rate), scalar(type, rate_decay),
                      scalar(type, epsilon), scalar(type, decay)},
                     {{type, kShape}, {type, kShape}}),
            {param, sum}, type);
    }
  }
}

TEST(OptimizerKernels, LionFollowsItsFormula) {
  Numbers n;
  n.first[0] = n.grad[0] = 0;  // whose sign is 0
  const double rate = 0.01, b1 = 0.9, b2 = 0.99, decay = 0.1;
  std::vector<double> param(kCount), m(kCount);
  for (size_t i = 0; i < param.size(); ++i) {
    const double mixed = b1 * n.first[i] + (1 - b1) * n.grad[i];
    const double sign = mixed > 0 ? 1 : mixed < 0 ? -1 : 0;
    param[i] = n.param[i] * (1 - rate * decay) - rate * sign;
    m[i] = b2 * n.first[i] + (1 - b2) * n.grad[i];
  }
  for (DataType type : {DataType::kFloat64, DataType::kFloat32}) {
    check(makeCall("pipeshard", "Lion", 1,
                   {of(type, kShape, n.param), of(type, kShape, n.grad), of(type, kShape, n.first),
                    scalar(type, rate), scalar(type, b1), scalar(type, b2), scalar(type, decay)},
                   {{type, kShape}, {type, kShape}}),
          {param, m}, type);
  }
}

TEST(OptimizerKernels, LambDirectionFollowsItsFormula) {
  const Numbers n;
  const double b1 = 0.9, b2 = 0.99, epsilon = 1e-6, decay = 0.1;
  for (int64_t step : {1, 5}) {
    const auto t = static_cast<double>(step);
    std::vector<double> direction(kCount), m(kCount), v(kCount);
    for (size_t i = 0; i < m.size(); ++i) {
      m[i] = b1 * n.first[i] + (1 - b1) * n.grad[i];
      v[i] = b2 * n.second[i] + (1 - b2) * n.grad[i] * n.grad[i];
      direction[i] = m[i] / (1 - std::pow(b1, t)) / (std::sqrt(v[i] / (1 - std::pow(b2, t))) + epsilon) +
                     decay * n.param[i];
    }
    for (DataType type : {DataType::kFloat64, DataType::kFloat32}) {
      check(makeCall("pipeshard", "LAMBDirection", 1,
                     {of(type, kShape, n.param), of(type, kShape, n.grad), of(type, kShape, n.first),
                      of(type, kShape, n.second), makeTensor<int64_t>({}, {step}), scalar(type, b1),
                      scalar(type, b2), scalar(type, epsilon), scalar(type, decay)},
                     {{type, kShape}, {type, kShape}, {type, kShape}}),
            {direction, m, v}, type);
    }
  }
}

TEST(SquareSumKernel, AddsUpItsShareInDouble) {
  const Numbers n;
  const int64_t parts = 3;
  double all = 0;
  for (int64_t part = 0; part < parts; ++part) {
    double want = 0;
    for (int64_t i = kCount * part / parts; i < kCount * (part + 1) / parts; ++i)
      want += n.grad[i] * n.grad[i];
    const KernelCall call =
        makeCall("pipeshard", "SquareSum", 1,
                 {of(DataType::kFloat64, kShape, n.grad), makeTensor<int64_t>({1}, {part})},
                 {{DataType::kFloat64, {}}}, {{"parts", parts}});
    all += numbersOf(runOnOneAndTwoThreads(call)[0])[0];
    EXPECT_NEAR(numbersOf(runOnOneAndTwoThreads(call)[0])[0], want, 1e-12 * want);
  }
  // squares of float32 numbers that float32 could not hold
  const KernelCall large = makeCall(
      "pipeshard", "SquareSum", 1, {of(DataType::kFloat32, {2}, {3e30, 4e30}), makeTensor<int64_t>({1}, {0})},
      {{DataType::kFloat64, {}}});
  EXPECT_NEAR(numbersOf(runKernel(large)[0])[0], 25e60, 25e54);
  EXPECT_GT(all, 0);
  EXPECT_NE(refusalOf([&] {
              runKernel(makeCall("pipeshard", "SquareSum", 1,
                                 {of(DataType::kFloat64, kShape, n.grad), makeTensor<int64_t>({1}, {parts})},
                                 {{DataType::kFloat64, {}}}, {{"parts", parts}}));
            }).find("part 3 of 3 parts is none"),
            std::string::npos);
}

TEST(OptimizerKernels, FollowTheScheduleOfTheirLearningRate) {
  const Numbers n;
  for (int64_t step : {1, 3, 6, 12}) {
    const auto done = static_cast<double>(step - 1);  // 4 steps of warm-up, then half a cosine in 6 to 0.02
    const double rate = done < 4 ? 0.1 * (0.25 + 0.75 * done / 4)
                                 : 0.02 + 0.08 * (1 + std::cos(M_PI * std::min(1.0, (done - 4) / 6))) / 2;
    std::vector<double> want(kCount);
    for (size_t i = 0; i < want.size(); ++i) want[i] = n.param[i] - rate * (n.grad[i] + 0.01 * n.param[i]);
    for (DataType type : {DataType::kFloat64, DataType::kFloat32}) {
      const DataType exact = DataType::kFloat64;
      check(makeCall("pipeshard", "SGD", 1,
                     {of(type, kShape, n.param), of(type, kShape, n.grad), makeTensor<int64_t>({}, {step}),
                      scalar(type, 0.1), scalar(type, 0.01), scalar(exact, 4), scalar(exact, 0.25),
                      scalar(exact, 10), scalar(exact, 0.02)},
                     {{type, kShape}}, {{"schedule", std::string("cosine")}}),
            {want}, type);
    }
  }
}

TEST(OptimizerKernels, RefuseAScheduleThatIsUnknownOrLacksItsNumbers) {
  const auto f = DataType::kFloat32;
  const std::optional<Tensor> one = of(f, {1}, {1}), number = scalar(f, 0.5);
  const auto refusal = [&](const char* schedule) {
    return refusalOf([&] {
      runKernel(makeCall("pipeshard", "SGD", 1, {one, one, makeTensor<int64_t>({}, {1}), number, number},
                         {{f, {1}}}, {{"schedule", std::string(schedule)}}));
    });
  };
  EXPECT_NE(refusal("zigzag").find("there is no schedule 'zigzag'"), std::string::npos);
  EXPECT_NE(refusal("cosine").find("inputs"), std::string::npos) << refusal("cosine");
}

TEST(OptimizerKernels, AdamRefusesStepZero) {
  const auto f = DataType::kFloat32;
  const std::optional<Tensor> one = of(f, {1}, {1}), number = scalar(f, 0.5);
  const KernelCall call =
      makeCall("pipeshard", "Adam", 1,
               {one, one, one, one, makeTensor<int64_t>({}, {0}), number, number, number, number, number},
               {{f, {1}}, {f, {1}}, {f, {1}}});
  EXPECT_NE(refusalOf([&] { runKernel(call); }).find("Step is 0"), std::string::npos);
}

}  // namespace
}  // namespace pipeshard::testing
