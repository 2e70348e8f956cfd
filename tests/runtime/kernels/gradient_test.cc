// Gradient functions of the pipeshard domain against finite differences of the forward kernels in float64,
// and float32 against float64.
#include <cmath>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {
namespace {

const auto kF64 = DataType::kFloat64;

double dot(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = numbersOf(a), y = numbersOf(b);
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

// d <dy, forward(inputs)[output]> / d inputs[input], by central differences.
std::vector<double> finiteDifferences(KernelCall forward, size_t input, size_t output, const Tensor& dy) {
  constexpr double kStep = 1e-6;
  std::vector<double> elements = elementsOf<double>(*forward.inputs[input]);
  const Shape shape = forward.inputs[input]->shape;
  std::vector<double> slopes;
  for (double& element : elements) {
    const double center = element;
    element = center + kStep;
    forward.inputs[input] = makeTensor<double>(shape, elements);
    const double above = dot(runKernel(forward)[output], dy);
    element = center - kStep;
    forward.inputs[input] = makeTensor<double>(shape, elements);
    const double below = dot(runKernel(forward)[output], dy);
    element = center;
    slopes.push_back((above - below) / (2 * kStep));
  }
  return slopes;
}

void expectNear(const Tensor& got, const std::vector<double>& want, double tolerance) {
  const std::vector<double> numbers = numbersOf(got);
  ASSERT_EQ(numbers.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(numbers[i], want[i], tolerance * (1 + std::abs(want[i]))) << "element " << i;
}

// The call with all float64 tensors in float32.
KernelCall inFloat32(KernelCall call) {
  for (auto& tensor : call.inputs) {
    if (tensor && tensor->type == kF64) tensor = convertTensor(*tensor, DataType::kFloat32);
  }
  for (OutputSpec& output : call.outputs) {
    if (output.type == kF64) output.type = DataType::kFloat32;
  }
  return call;
}

// Output `output` of `gradient` equals the slopes of `forward`, in float64 and float32, on any number of
// threads, in place.
void expectGradient(const KernelCall& gradient, size_t output, const KernelCall& forward, size_t input,
                    size_t forward_output, const Tensor& dy) {
  const std::vector<double> want = finiteDifferences(forward, input, forward_output, dy);
  expectNear(runOnOneAndTwoThreads(gradient)[output], want, 1e-7);
  const KernelCall narrow = inFloat32(gradient);
  expectNear(runOnOneAndTwoThreads(narrow)[output], want, 2e-5);
  const std::unique_ptr<Kernel> kernel = createKernel(gradient);
  for (size_t i = 0; i < gradient.inputs.size(); ++i) {
    if (kernel->mayRunInPlace(i, output))
      expectNear(runInPlace(gradient, *kernel, i, output)[output], want, 1e-7);
  }
}

TEST(GradientKernels, ReluGradEqualsFiniteDifferences) {
  const Tensor x = makeTensor<double>({2, 3}, {-2, -0.5, 0.25, 1, 3, -1}), dy = randomTensor(kF64, {2, 3}, 2);
  const KernelCall forward = makeCall("", "Relu", 14, {x}, {{kF64, {2, 3}}});
  expectGradient(makeCall("pipeshard", "ReluGrad", 1, {dy, runKernel(forward)[0]}, {{kF64, {2, 3}}}), 0,
                 forward, 0, 0, dy);
}

TEST(GradientKernels, ReluGradIsZeroWhereTheOutputIsZero) {
  const Tensor dy = makeTensor<float>({2}, {3, 3}), y = makeTensor<float>({2}, {0, 1});
  EXPECT_EQ(elementsOf<float>(
                runKernel(makeCall("pipeshard", "ReluGrad", 1, {dy, y}, {{DataType::kFloat32, {2}}}))[0]),
            (std::vector<float>{0, 3}));
}

TEST(GradientKernels, GeluGradEqualsFiniteDifferencesForBothApproximations) {
  const Tensor x = randomTensor(kF64, {5, 37}, 3, -5, 5), dy = randomTensor(kF64, {5, 37}, 4);
  for (const char* approximate : {"none", "tanh"}) {
    const std::map<std::string, Attribute> attributes = {{"approximate", std::string(approximate)}};
    const KernelCall forward = makeCall("", "Gelu", 20, {x}, {{kF64, {5, 37}}}, attributes);
    expectGradient(makeCall("pipeshard", "GeluGrad", 1, {dy, x}, {{kF64, {5, 37}}}, attributes), 0, forward,
                   0, 0, dy);
  }
}

TEST(GradientKernels, SwishGradEqualsFiniteDifferences) {
  const Tensor x = randomTensor(kF64, {5, 37}, 3, -9, 9), dy = randomTensor(kF64, {5, 37}, 4);
  for (const float alpha : {1.0f, 1.702f, -0.5f}) {
    const std::map<std::string, Attribute> attributes = {{"alpha", alpha}};
    const KernelCall forward = makeCall("pipeshard", "Swish", 1, {x}, {{kF64, {5, 37}}}, attributes);
    expectGradient(makeCall("pipeshard", "SwishGrad", 1, {dy, x}, {{kF64, {5, 37}}}, attributes), 0, forward,
                   0, 0, dy);
  }
}

TEST(GradientKernels, MishGradEqualsFiniteDifferences) {
  const Tensor x = randomTensor(kF64, {5, 37}, 3, -9, 9), dy = randomTensor(kF64, {5, 37}, 4);
  const KernelCall forward = makeCall("", "Mish", 18, {x}, {{kF64, {5, 37}}});
  expectGradient(makeCall("pipeshard", "MishGrad", 1, {dy, x}, {{kF64, {5, 37}}}), 0, forward, 0, 0, dy);
}

TEST(GradientKernels, MishAndItsGradientReachTheirLimitsWithoutOverflow) {
  for (const DataType type : {DataType::kFloat32, kF64}) {
    const Tensor x = convertTensor(makeTensor<double>({5}, {-2000, -120, 0, 120, 2000}), type);
    const Tensor dy = convertTensor(makeTensor<double>({5}, {1, 1, 1, 1, 1}), type);
    const std::vector<double> y = numbersOf(runKernel(makeCall("", "Mish", 18, {x}, {{type, {5}}}))[0]);
    const std::vector<double> dx =
        numbersOf(runKernel(makeCall("pipeshard", "MishGrad", 1, {dy, x}, {{type, {5}}}))[0]);
    const std::vector<double> values = {0, 0, 0, 120, 2000}, slopes = {0, 0, 0.6, 1, 1};
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(y[i], values[i], 1e-6) << i;
      EXPECT_NEAR(dx[i], slopes[i], 1e-6) << i;
    }
  }
}

TEST(GradientKernels, SoftmaxGradsEqualFiniteDifferencesOnEveryAxis) {
  const Shape shape = {3, 5, 7};
  const Tensor x = randomTensor(kF64, shape, 5, -3, 3), dy = randomTensor(kF64, shape, 6);
  for (const char* name : {"Softmax", "LogSoftmax"}) {
    for (int64_t axis : {-1, 0, 1}) {
      const std::map<std::string, Attribute> attributes = {{"axis", axis}};
      const KernelCall forward = makeCall("", name, 13, {x}, {{kF64, shape}}, attributes);
      const KernelCall gradient = makeCall("pipeshard", std::string(name) + "Grad", 1,
                                           {dy, runKernel(forward)[0]}, {{kF64, shape}}, attributes);
      expectGradient(gradient, 0, forward, 0, 0, dy);
    }
  }
}

TEST(GradientKernels, LayerNormalizationGradsEqualFiniteDifferences) {
  const Shape shape = {4, 3, 19};
  const Tensor x = randomTensor(kF64, shape, 7, -2, 2), dy = randomTensor(kF64, shape, 8);
  for (int64_t axis : {-1, 1}) {
    const Shape weights(shape.begin() + (axis == 1 ? 1 : 2), shape.end());
    const Shape statistics = axis == 1 ? Shape{4, 1, 1} : Shape{4, 3, 1};
    const Tensor scale = randomTensor(kF64, weights, 9, 0.5, 1.5), bias = randomTensor(kF64, weights, 10);
    const std::map<std::string, Attribute> attributes = {{"axis", axis}};
    const KernelCall forward = makeCall("", "LayerNormalization", 17, {x, scale, bias},
                                        {{kF64, shape}, {kF64, statistics}, {kF64, statistics}}, attributes);
    const std::vector<Tensor> results = runKernel(forward);
    const KernelCall to_input = makeCall("pipeshard", "LayerNormalizationInputGrad", 1,
                                         {dy, x, scale, results[1], results[2]}, {{kF64, shape}}, attributes);
    expectGradient(to_input, 0, forward, 0, 0, dy);
    const KernelCall to_weights =
        makeCall("pipeshard", "LayerNormalizationWeightGrad", 1, {dy, x, results[1], results[2]},
                 {{kF64, weights}, {kF64, weights}}, attributes);
    expectGradient(to_weights, 0, forward, 1, 0, dy);
    expectGradient(to_weights, 1, forward, 2, 0, dy);
    const KernelCall to_bias =  // where the scale is no parameter
        makeCall("pipeshard", "LayerNormalizationWeightGrad", 1, {dy, x, results[1], results[2]},
                 {{}, {kF64, weights}}, attributes);
    EXPECT_TRUE(runKernel(to_bias)[1].bytes == runKernel(to_weights)[1].bytes);
  }
}

TEST(GradientKernels, RmsNormalizationGradsEqualFiniteDifferences) {
  const Shape shape = {3, 5, 37}, statistics = {3, 5, 1}, weights = {37};
  const Tensor x = randomTensor(kF64, shape, 7), dy = randomTensor(kF64, shape, 8);
  const Tensor scale = randomTensor(kF64, weights, 9, 0.5, 1.5);
  const KernelCall forward = makeCall("pipeshard", "RMSNormalization", 1, {x, scale},
                                      {{kF64, shape}, {kF64, statistics}}, {{"epsilon", 1e-3f}});
  const Tensor inverse = runKernel(forward)[1];
  const KernelCall to_input =
      makeCall("pipeshard", "RMSNormalizationInputGrad", 1, {dy, x, scale, inverse}, {{kF64, shape}});
  expectGradient(to_input, 0, forward, 0, 0, dy);
  const KernelCall to_weights =
      makeCall("pipeshard", "RMSNormalizationWeightGrad", 1, {dy, x, inverse}, {{kF64, weights}});
  expectGradient(to_weights, 0, forward, 1, 0, dy);
}

TEST(GradientKernels, AveragePoolGradEqualsFiniteDifferences) {
  const Shape image = {2, 3, 7, 6}, pooled = {2, 3, 4, 3};
  const Tensor x = randomTensor(kF64, image, 11), dy = randomTensor(kF64, pooled, 12);
  for (int64_t counted : {0, 1}) {
    std::map<std::string, Attribute> attributes = {{"kernel_shape", std::vector<int64_t>{3, 2}},
                                                   {"strides", std::vector<int64_t>{2, 2}},
                                                   {"dilations", std::vector<int64_t>{1, 2}},
                                                   {"pads", std::vector<int64_t>{1, 1, 0, 0}},
                                                   {"ceil_mode", int64_t{1}},
                                                   {"count_include_pad", counted}};
    const KernelCall forward = makeCall("", "AveragePool", 19, {x}, {{kF64, pooled}}, attributes);
    attributes["image"] = std::vector<int64_t>{7, 6};
    expectGradient(makeCall("pipeshard", "AveragePoolGrad", 1, {dy}, {{kF64, image}}, attributes), 0, forward,
                   0, 0, dy);
  }
}

TEST(GradientKernels, GatherGradEqualsFiniteDifferencesWithRepeatedAndNegativeIndices) {
  const Tensor indices = makeTensor<int64_t>({2, 3}, {0, 4, -1, 2, 0, 0});
  for (int64_t axis : {0, 1, -1}) {
    Shape shape = {5, 5, 5};
    Shape out = axis == 0 ? Shape{2, 3, 5, 5} : axis == 1 ? Shape{5, 2, 3, 5} : Shape{5, 5, 2, 3};
    const Tensor data = randomTensor(kF64, shape, 11), dy = randomTensor(kF64, out, 12);
    const KernelCall forward = makeCall("", "Gather", 13, {data, indices}, {{kF64, out}}, {{"axis", axis}});
    const KernelCall gradient =
        makeCall("pipeshard", "GatherGrad", 1, {dy, indices, makeTensor<int64_t>({3}, shape)},
                 {{kF64, shape}}, {{"axis", axis}}, {2});
    expectGradient(gradient, 0, forward, 0, 0, dy);
  }
}

TEST(GradientKernels, GatherGradAddsToWhatIsThere) {
  const Tensor indices = makeTensor<int64_t>({2, 3}, {0, 4, -1, 2, 0, 0});
  const Tensor dy = randomTensor(DataType::kFloat32, {2, 3, 300}, 12),
               total = randomTensor(DataType::kFloat32, {5, 300}, 13);
  expectAddsInPlace(makeCall("pipeshard", "GatherGrad", 1, {dy, indices, makeTensor<int64_t>({2}, {5, 300})},
                             {{DataType::kFloat32, {5, 300}}}, {}, {2}),
                    total);
}

TEST(GradientKernels, GatherElementsGradEqualsFiniteDifferences) {
  const Shape shape = {4, 3}, picked = {2, 3};
  const Tensor indices = makeTensor<int64_t>(picked, {0, -1, 2, 0, 1, 2});
  const Tensor data = randomTensor(kF64, shape, 13), dy = randomTensor(kF64, picked, 14);
  const KernelCall forward =
      makeCall("", "GatherElements", 13, {data, indices}, {{kF64, picked}}, {{"axis", int64_t{0}}});
  const KernelCall gradient =
      makeCall("pipeshard", "GatherElementsGrad", 1, {dy, indices, makeTensor<int64_t>({2}, shape)},
               {{kF64, shape}}, {{"axis", int64_t{0}}}, {2});
  expectGradient(gradient, 0, forward, 0, 0, dy);
}

struct LossCase {
  Shape scores;
  std::string reduction;
  bool weighted;
  bool ignoring;
};

void checkLossCase(const LossCase& c) {
  Shape label_shape = c.scores;
  label_shape.erase(label_shape.begin() + 1);
  const int64_t classes = c.scores[1];
  std::vector<int64_t> labels(elementCount(label_shape));
  for (size_t i = 0; i < labels.size(); ++i)
    labels[i] = c.ignoring && i % 3 == 1 ? -100 : static_cast<int64_t>(i * 7 + 2) % classes;
  const Tensor label = makeTensor<int64_t>(label_shape, labels);
  const Tensor scores = randomTensor(kF64, c.scores, 15, -3, 3);
  const std::optional<Tensor> weights =
      c.weighted ? std::optional(randomTensor(kF64, {classes}, 16, 0.5, 2)) : std::nullopt;
  const Shape loss_shape = c.reduction == "none" ? label_shape : Shape{};
  const Tensor dy = randomTensor(kF64, loss_shape, 17, 0.5, 2);
  std::map<std::string, Attribute> attributes = {{"reduction", c.reduction}};
  if (c.ignoring) attributes["ignore_index"] = int64_t{-100};
  const KernelCall forward = makeCall("", "SoftmaxCrossEntropyLoss", 13, {scores, label, weights},
                                      {{kF64, loss_shape}, {kF64, c.scores}}, attributes);
  attributes["has_ignore_index"] = int64_t{c.ignoring};
  const std::vector<Tensor> ours =
      runKernel(makeCall("pipeshard", "CrossEntropyLoss", 1, {scores, label, weights},
                         {{kF64, loss_shape}, {kF64, label_shape}, {kF64, label_shape}}, attributes));
  const std::vector<double> losses = numbersOf(ours[0]), standard = numbersOf(runKernel(forward)[0]);
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], standard[i], 1e-13);
  const KernelCall gradient = makeCall("pipeshard", "CrossEntropyLossGrad", 1,
                                       {dy, scores, ours[1], ours[2], label, weights}, {{kF64, c.scores}},
                                       attributes);
  expectGradient(gradient, 0, forward, 0, 0, dy);
}

TEST(GradientKernels, CrossEntropyLossGradEqualsFiniteDifferencesInEveryForm) {
  for (const Shape& scores : {Shape{6, 5}, Shape{2, 5, 3}, Shape{2, 4, 2, 3}}) {
    for (const char* reduction : {"none", "sum", "mean"}) {
      for (int form = 0; form < 4; ++form) {
        SCOPED_TRACE(fmt::format("{} {} weighted {} ignoring {}", shapeToString(scores), reduction, form & 1,
                                 form & 2));
        checkLossCase({scores, reduction, (form & 1) != 0, (form & 2) != 0});
      }
    }
  }
}

}  // namespace
}  // namespace pipeshard::testing
