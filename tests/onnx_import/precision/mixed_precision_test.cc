// Which values become bfloat16, on a small graph; and how far the gradients of the examples are then from
// those in float64, every node computed by itself.
#include "onnx_import/precision/mixed_precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "ir/operators/initializer_role.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/patterns/patterns.h"
#include "onnx_import/precision/precision.h"
#include "onnx_import/prepare/input_range.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/expect_error.h"
#include "tests/onnx_import/autodiff/interpreter.h"

namespace pipeshard::testing {
namespace {

constexpr DataType kNarrow = DataType::kBfloat16;
constexpr DataType kSingle = DataType::kFloat32;

// x [4, 8] and mask [4, 4] are inputs:
//   scores = x w1 (x w2)^T + mask;  y = softmax(scores) x w2;  loss = mean(relu(y w3^T) * 1e30)
struct SmallModel {
  Graph graph;
  GraphBuilder builder{graph};
  SmallModel() {
    graph.opset_imports[""] = 18;
    const ValueId x = input("x", {4, 8});
    const ValueId mask = input("mask", {4, 4});
    const ValueId first = op("MatMul", {x, weight("w1", {8, 8})}, "first", {4, 8});
    const ValueId second = op("MatMul", {x, weight("w2", {8, 8})}, "second", {4, 8});
    const ValueId turned = op("Transpose", {second}, "turned", {8, 4});
    const ValueId scores =
        op("Add", {op("MatMul", {first, turned}, "products", {4, 4}), mask}, "scores", {4, 4});
    const ValueId y = op("MatMul", {op("Softmax", {scores}, "softmax", {4, 4}), second}, "y", {4, 8});
    const ValueId w3 = op("Transpose", {weight("w3", {8, 8})}, "w3_turned", {8, 8});
    const ValueId relu = op("Relu", {op("MatMul", {y, w3}, "z", {4, 8})}, "relu", {4, 8});
    const ValueId large = builder.addConstant("large", makeConstant<float>({}, {-3.4028234e38f}));
    const ValueId kept = op("Max", {relu, large}, "kept", {4, 8});
    graph.outputs = {op("ReduceMean", {kept}, "loss", {}), kept};
    graph.node(NodeId(graph.nodes.size() - 1)).attributes["keepdims"] = int64_t{0};
  }
  ValueId input(const std::string& name, Shape shape) {
    graph.inputs.push_back(builder.addValue(name, kSingle, std::move(shape)));
    return graph.inputs.back();
  }
  ValueId weight(const std::string& name, const Shape& shape) {
    const ValueId id = builder.addConstant(name, makeConstant<float>(shape, std::vector<float>(64, 0.1f)));
    graph.value(id).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
    return id;
  }
  ValueId op(const char* type, std::vector<ValueId> inputs, const char* name, Shape shape) {
    const ValueId output = builder.addValue(name, kSingle, std::move(shape));
    builder.addNode("", type, std::move(inputs), {output});
    return output;
  }
  DataType typeOf(const std::string& name) const { return graph.dataType(findValue(graph, name)); }
  // What the node that makes `name` reads.
  std::string reads(const std::string& name, size_t position) const {
    const NodeId producer = computeUseDef(graph).producer[findValue(graph, name).index()];
    return graph.value(graph.node(producer).inputs.at(position)).name;
  }
};

TEST(MixedPrecision, ProductsAndElementwiseWorkAreNarrowSoftmaxAndLossAreNot) {
  SmallModel model;
  mixPrecision(model.graph, kNarrow);
  for (const char* name : {"first", "second", "turned", "products", "scores", "y", "z", "relu"})
    EXPECT_EQ(model.typeOf(name), kNarrow) << name;
  for (const char* name : {"x", "mask", "w1", "w2", "w3", "softmax", "loss"})
    EXPECT_EQ(model.typeOf(name), kSingle) << name;
  EXPECT_EQ(model.reads("softmax", 0), "scores/float32");
  EXPECT_EQ(model.reads("first", 1), "w1/bfloat16");
}

TEST(MixedPrecision, OutputsKeepTheirNamesAndTypes) {
  SmallModel model;
  mixPrecision(model.graph, kNarrow);
  EXPECT_EQ(model.graph.value(model.graph.outputs[1]).name, "kept");
  EXPECT_EQ(model.typeOf("kept"), kSingle);
  EXPECT_EQ(model.typeOf("kept/bfloat16"), kNarrow);
}

TEST(MixedPrecision, AWeightIsRoundedBeforeItIsShownTransposed) {
  SmallModel model;
  mixPrecision(model.graph, kNarrow);
  EXPECT_EQ(model.typeOf("w3_turned"), kNarrow);
  EXPECT_EQ(model.reads("w3_turned", 0), "w3/bfloat16");
}

TEST(MixedPrecision, WhatTheTypeCannotHoldBecomesItsLeastFiniteNumber) {
  SmallModel model;
  mixPrecision(model.graph, kNarrow);
  EXPECT_EQ(model.reads("scores", 1), "mask/clipped/bfloat16");
  const Constant* limit = model.graph.constant(findValue(model.graph, "large/bfloat16"));
  ASSERT_NE(limit, nullptr);
  EXPECT_DOUBLE_EQ(numericElements(*limit)[0], -std::ldexp(2 - std::ldexp(1, -7), 127));
}

// An infinity in the data must end the run, as in float32.
TEST(MixedPrecision, WhatIsInfiniteStaysSo) {
  SmallModel model;
  const ValueId floor = model.builder.addConstant("floor", makeConstant<float>({}, {-INFINITY}));
  const ValueId kept = findValue(model.graph, "kept");
  const ValueId above = model.op("Max", {kept, floor}, "above", {4, 8});
  model.graph.outputs[1] = above;
  mixPrecision(model.graph, DataType::kFloat16);
  EXPECT_EQ(model.reads("scores", 1), "mask/clipped/float16");
  EXPECT_EQ(model.reads("mask/clipped/float16", 0), "mask/clipped");
  EXPECT_EQ(model.reads("mask/clipped", 0), "mask/infinite");  // Where
  EXPECT_EQ(model.reads("mask/clipped", 1), "mask");
  EXPECT_EQ(model.reads("mask/clipped", 2), "mask/within");
  EXPECT_EQ(model.reads("mask/infinite", 0), "mask");
  const Constant* limit = model.graph.constant(findValue(model.graph, "floor/float16"));
  ASSERT_NE(limit, nullptr);
  EXPECT_EQ(numericElements(*limit)[0], -INFINITY);
}

TEST(MixedPrecision, TheSameParametersAreTrained) {
  SmallModel model;
  const std::vector<InitializerRole> before = initializerRoles(model.graph);
  mixPrecision(model.graph, kNarrow);
  const std::vector<InitializerRole> after = initializerRoles(model.graph);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i] == InitializerRole::kParameter, after[i] == InitializerRole::kParameter)
        << model.graph.values[i].name;
  }
  EXPECT_EQ(std::count(after.begin(), after.end(), InitializerRole::kParameter), 3);
}

TEST(MixedPrecision, OperatorsAreKeptInFloat32ByTypeByNameOrByTheirOutputs) {
  SmallModel model;
  model.graph.node(computeUseDef(model.graph).producer[findValue(model.graph, "y").index()]).name =
      "block/mix";
  const MixedNodes nodes = mixPrecision(model.graph, kNarrow, {"^Relu$", "block/", "^z$"});
  for (const char* name : {"relu", "y", "z", "softmax"}) EXPECT_EQ(model.typeOf(name), kSingle) << name;
  for (const char* name : {"first", "second", "turned", "scores"})
    EXPECT_EQ(model.typeOf(name), kNarrow) << name;
  EXPECT_EQ(model.reads("z", 1), "w3_turned");  // its weight is not rounded
  EXPECT_EQ(model.typeOf("w3_turned"), kSingle);
  EXPECT_EQ(nodes.kept, 3u);
  EXPECT_EQ(nodes.operators.at("MatMul").narrow, 3u);
  EXPECT_EQ(nodes.operators.at("MatMul").float32, 2u);
  EXPECT_EQ(nodes.operators.at("Relu").float32, 1u);
  EXPECT_EQ(nodes.weight_casts, 2u);
}

// Operators whose first output nobody reads are told apart all the same.
TEST(MixedPrecision, OnlyWhatIsNamedIsKeptWhereFirstOutputsAreLeftOut) {
  SmallModel model;
  for (const std::string name : {"first", "second"}) {
    const ValueId part = model.builder.addValue(name + "_part", kSingle, {4, 4});
    model.builder.addNode("", "Split", {findValue(model.graph, name)}, {ValueId(), part},
                          {{"axis", int64_t{1}}, {"num_outputs", int64_t{2}}});
  }
  mixPrecision(model.graph, kNarrow, {"^first_part$"});
  EXPECT_EQ(model.typeOf("first_part"), kSingle);
  EXPECT_EQ(model.typeOf("second_part"), kNarrow);
}

TEST(MixedPrecision, AnExpressionThatKeepsNothingIsRefused) {
  SmallModel model;
  EXPECT_ERROR(mixPrecision(model.graph, kNarrow, {"^Gelu$"}), ErrorCode::kUsage,
               "--keep-float32 '^Gelu$' is found in no operator that works on activations");
}

// What torch.autocast inside a module writes.
TEST(MixedPrecision, WhatTheModelComputesInTheNarrowTypeStaysSo) {
  Graph graph;
  GraphBuilder builder(graph);
  graph.opset_imports[""] = 18;
  const auto op = [&](const char* type, std::vector<ValueId> inputs, const char* name, DataType result) {
    const ValueId output = builder.addValue(name, result, {8, 8});
    builder.addNode("", type, std::move(inputs), {output});
    if (std::string_view(type) == "Cast") graph.nodes.back().attributes["to"] = static_cast<int64_t>(result);
    return output;
  };
  const ValueId x = builder.addValue("x", kSingle, {8, 8});
  const ValueId w = builder.addConstant("w", makeConstant<float>({8, 8}, std::vector<float>(64, 0.1f)));
  graph.value(w).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
  const ValueId narrow_x = op("Cast", {x}, "narrow_x", kNarrow),
                narrow_w = op("Cast", {w}, "narrow_w", kNarrow);
  const ValueId product = op("MatMul", {narrow_x, narrow_w}, "product", kNarrow);
  const ValueId relu = op("Relu", {product}, "relu", kNarrow);
  const ValueId wide = op("Cast", {relu}, "wide", kSingle);
  graph.inputs = {x};
  graph.outputs = {op("Softmax", {wide}, "y", kSingle)};
  EXPECT_EQ(mixPrecision(graph, kNarrow).casts, 0u);
  EXPECT_EQ(graph.nodes.size(), 6u);
  EXPECT_EQ(graph.dataType(relu), kNarrow);
}

TEST(MixedPrecision, OtherTypesAreRefused) {
  SmallModel model;
  EXPECT_ERROR(mixPrecision(model.graph, DataType::kFloat64), ErrorCode::kUsage,
               "precision float64 is not supported; use bfloat16 or float16");
}

// float16 has a range of its own; all else is as in bfloat16.
TEST(MixedPrecision, Float16KeepsTheSameOperatorsInFloat32) {
  SmallModel model, other;
  const MixedNodes halves = mixPrecision(model.graph, DataType::kFloat16);
  const MixedNodes brains = mixPrecision(other.graph, kNarrow);
  EXPECT_EQ(halves.all.narrow, brains.all.narrow);
  EXPECT_EQ(halves.all.float32, brains.all.float32);
  EXPECT_EQ(model.typeOf("products"), DataType::kFloat16);
  const Constant* limit = model.graph.constant(findValue(model.graph, "large/float16"));
  ASSERT_NE(limit, nullptr);
  EXPECT_EQ(numericElements(*limit)[0], -65504);
  EXPECT_EQ(model.reads("scores", 1), "mask/clipped/float16");
}

// ---- the examples

Constant weightOf(const Graph& graph, const Value& value, const WeightReference& reference) {
  Constant stored{kSingle, *value.shape, std::vector<std::byte>(reference.length)};
  std::ifstream file(graph.directory + "/" + reference.location, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(reference.offset));
  file.read(reinterpret_cast<char*>(stored.bytes.data()), static_cast<std::streamsize>(reference.length));
  PIPESHARD_CHECK(file.good(), "{} is too short", reference.location);
  if (value.data_type == kSingle) return stored;
  return makeConstant<double>(stored.shape, numericElements(stored));
}

// Random, the same numbers in either type.
Constant inputContent(const Graph& graph, ValueId input) {
  const Value& value = graph.value(input);
  const int64_t count = elementCount(*value.shape);
  if (isFloatingPoint(value.data_type)) {
    const std::vector<double> numbers = numericElements(randomTensor(*value.shape, 7));
    std::vector<float> rounded(numbers.begin(), numbers.end());
    if (value.data_type == kSingle) return makeConstant<float>(*value.shape, rounded);
    return makeConstant<double>(*value.shape, std::vector<double>(rounded.begin(), rounded.end()));
  }
  const IntegerRange range = inputRange(graph, input);
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) numbers.push_back(range.low + i * 7919 % (range.high - range.low));
  return makeConstant<int64_t>(*value.shape, numbers);
}

struct Step {
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;  // by parameter
};

TrainingGraph trainingOf(Graph prepared, const std::string& loss, DataType precision) {
  ForwardGraph forward;
  forward.graph = std::move(prepared);
  if (precision == kNarrow) mixPrecision(forward.graph, kNarrow);
  forward.loss = findValue(forward.graph, loss);
  for (const ValueId input : forward.graph.inputs) forward.inputs.push_back({input, 0});
  return buildTrainingGraph(std::move(forward), OptimizerSpec());
}

// `more`: what other inputs hold.
Step runPasses(const TrainingGraph& training, Tensors given = {}) {
  const Graph& graph = training.graph;
  for (const BatchInput& input : training.inputs)
    given[graph.value(input.value).name] = inputContent(graph, input.value);
  for (const auto& [id, initializer] : graph.initializers) {
    if (const auto* reference = std::get_if<WeightReference>(&initializer))
      given[graph.value(id).name] = weightOf(graph, graph.value(id), *reference);
  }
  std::vector<NodeId> passes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (isPass(training.node_phase[n])) passes.emplace_back(n);
  }
  const Tensors made = Interpreter(graph, passes).run(given);
  Step step;
  step.loss = numericElements(made.at(graph.value(training.loss).name)).at(0);
  for (const Parameter& parameter : training.parameters) {
    std::vector<double>& sum = step.gradients[graph.value(parameter.value).name];
    for (const ValueId part : parameter.gradient_parts) {
      EXPECT_EQ(graph.dataType(part), graph.dataType(parameter.value));
      const std::vector<double> numbers = numericElements(made.at(graph.value(part).name));
      sum.resize(numbers.size());
      for (size_t i = 0; i < numbers.size(); ++i) sum[i] += numbers[i];
    }
  }
  return step;
}

// Of a prepared graph.
Step stepOf(Graph prepared, const std::string& loss, DataType precision) {
  return runPasses(trainingOf(std::move(prepared), loss, precision));
}

// And the name of its loss.
std::pair<Graph, std::string> preparedExample(const std::string& example, DataType precision) {
  Graph raw = readModel(std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + example);
  setPrecision(raw, precision);
  const std::string loss = raw.value(raw.outputs.at(0)).name;
  PrepareOptions options;
  options.dimensions = {{"batch", 4}};
  Graph prepared = prepareModel(std::move(raw), options);
  recognisePatterns(prepared);
  return {std::move(prepared), loss};
}

Step stepOf(const std::string& example, DataType precision) {
  auto [prepared, loss] = preparedExample(example, precision);
  return stepOf(std::move(prepared), loss, precision);
}

double norm(const std::vector<double>& numbers) {
  double squares = 0;
  for (const double number : numbers) squares += number * number;
  return std::sqrt(squares);
}

// The norm of all differences over that of all gradients.
double gradientError(const Step& mixed, const Step& exact) {
  EXPECT_EQ(mixed.gradients.size(), exact.gradients.size());
  std::vector<double> all, differences;
  for (const auto& [name, want] : exact.gradients) {
    const std::vector<double>& got = mixed.gradients.at(name);
    EXPECT_EQ(got.size(), want.size()) << name;
    all.insert(all.end(), want.begin(), want.end());
    for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) differences.push_back(got[i] - want[i]);
  }
  return norm(differences) / norm(all);
}

void expectNearFloat64(const std::string& example, double bound) {
  const Step exact = stepOf(example, DataType::kFloat64);
  const Step mixed = stepOf(example, kNarrow);
  EXPECT_NEAR(mixed.loss, exact.loss, 1e-3 * exact.loss);
  const double error = gradientError(mixed, exact);
  fmt::print("{}: {:.5f}\n", example, error);
  EXPECT_LT(error, bound);
  EXPECT_GT(error, 1e-5) << "nothing was rounded";
}

// No product or sum is rounded to bfloat16 on its way into the sum over microbatches.
TEST(MixedPrecision, GradientsOfWeightsAreFloat32OutOfTheirProductsAndSums) {
  for (const char* example : {"mlp.onnx", "gpt2.onnx", "llama.onnx", "resnet.onnx"}) {
    auto [prepared, loss] = preparedExample(example, kNarrow);
    const TrainingGraph training = trainingOf(std::move(prepared), loss, kNarrow);
    const Graph& graph = training.graph;
    const UseDef uses = computeUseDef(graph);
    int products = 0;
    for (const Parameter& parameter : training.parameters) {
      for (const ValueId part : parameter.gradient_parts) {
        NodeId maker = uses.producer[part.index()];
        while (isView(graph.node(maker))) maker = uses.producer[graph.node(maker).inputs[0].index()];
        const Node& node = graph.node(maker);
        EXPECT_FALSE(node.is("Cast")) << example << " " << graph.value(part).name;
        const bool multiplies = node.is("Gemm") || node.is("MatMul") || node.op_type == "ConvWeightGrad";
        if (multiplies && graph.dataType(node.inputs[0]) == kNarrow) ++products;
      }
    }
    EXPECT_GE(products, 4) << example;
  }
}

TEST(MixedPrecision, GradientsOfMlpAreNearThoseInFloat64) { expectNearFloat64("mlp.onnx", 1e-2); }
TEST(MixedPrecision, GradientsOfGpt2AreNearThoseInFloat64) { expectNearFloat64("gpt2.onnx", 2e-2); }
TEST(MixedPrecision, GradientsOfLlamaAreNearThoseInFloat64) { expectNearFloat64("llama.onnx", 2e-2); }

// Where a Relu is near zero a rounding makes another gradient of it: in resnet.onnx these add up to a quarter
// of the gradient's norm. So convolution, normalisation and pools are compared without.
TEST(MixedPrecision, LossOfResnetIsNearThatInFloat64) {
  const Step exact = stepOf("resnet.onnx", DataType::kFloat64);
  EXPECT_NEAR(stepOf("resnet.onnx", kNarrow).loss, exact.loss, 2e-3 * exact.loss);
}

// loss = mean((averages of BatchNormalization(Conv(x)))^3); in evaluation mode with given statistics.
Graph convolutionModel(bool training_mode) {
  Graph graph;
  graph.opset_imports[""] = 18;
  GraphBuilder builder(graph);
  const auto weight = [&](const char* name, const Shape& shape, double low) {
    const std::vector<double> numbers = numericElements(randomTensor(shape, shape.size(), low, low + 1));
    const ValueId id = builder.addConstant(
        name, makeConstant<float>(shape, std::vector<float>(numbers.begin(), numbers.end())));
    graph.value(id).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
    return id;
  };
  const auto number = [&](const char* name, Shape shape, float value) {
    const std::vector<float> numbers(elementCount(shape), value);
    const ValueId id = builder.addConstant(name, makeConstant<float>(std::move(shape), numbers));
    graph.value(id).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "BUFFER");
    return id;
  };
  const auto op = [&](const char* type, std::vector<ValueId> inputs, const char* name, Shape shape) {
    const ValueId output = builder.addValue(name, kSingle, std::move(shape));
    return builder.addNode("", type, std::move(inputs), {output});
  };
  const auto given = [&](NodeId node) { return graph.node(node).outputs[0]; };
  graph.inputs = {builder.addValue("x", kSingle, {4, 3, 8, 8})};
  const NodeId convolution =
      op("Conv", {graph.inputs[0], weight("w", {6, 3, 3, 3}, -0.5), weight("b", {6}, 0)}, "convolved",
         {4, 6, 6, 6});
  const NodeId normalization = op("BatchNormalization",
                                  {given(convolution), weight("scale", {6}, 0.5), weight("bias", {6}, -0.5),
                                   number("mean", {6}, 0.25), number("variance", {6}, 2)},
                                  "normalized", {4, 6, 6, 6});
  if (training_mode) {
    graph.node(normalization).attributes["training_mode"] = int64_t{1};
    for (const char* statistic : {"mean.updated", "variance.updated"})
      graph.node(normalization).outputs.push_back(builder.addValue(statistic, kSingle, {6}));
  }
  const NodeId pool = op("AveragePool", {given(normalization)}, "averages", {4, 6, 3, 3});
  graph.node(pool).attributes = {{"kernel_shape", std::vector<int64_t>{2, 2}},
                                 {"strides", std::vector<int64_t>{2, 2}}};
  const NodeId cube = op("Pow", {given(pool), number("three", {}, 3)}, "cubes", {4, 6, 3, 3});
  const NodeId loss = op("ReduceMean", {given(cube)}, "loss", {});
  graph.node(loss).attributes["keepdims"] = int64_t{0};
  graph.outputs = {given(loss)};
  return graph;
}

TEST(MixedPrecision, GradientsOfConvolutionAndNormalizationAreNearThoseInFloat64) {
  for (const bool training_mode : {true, false}) {
    Graph wide = convolutionModel(training_mode);
    setPrecision(wide, DataType::kFloat64);
    const Step exact = stepOf(std::move(wide), "loss", DataType::kFloat64);
    const Step mixed = stepOf(convolutionModel(training_mode), "loss", kNarrow);
    EXPECT_EQ(exact.gradients.size(), 4u);
    EXPECT_LT(gradientError(mixed, exact), 1e-2) << training_mode;
    EXPECT_GT(gradientError(mixed, exact), 1e-5) << training_mode;
  }
}

// A power of two changes no bit of float32 gradients but their exponents.
TEST(LossScale, MultipliesEveryGradientAndTheUpdateTakesItOutAgain) {
  const auto trained = [](double scale) {
    auto [prepared, loss] = preparedExample("mlp.onnx", kSingle);
    ForwardGraph forward;
    forward.graph = std::move(prepared);
    forward.loss = findValue(forward.graph, loss);
    for (const ValueId input : forward.graph.inputs) forward.inputs.push_back({input, 0});
    UpdateExtras extras;
    if (scale > 0) extras.loss_scaling = {scale, 2000};
    return buildTrainingGraph(std::move(forward), OptimizerSpec(), {}, extras);
  };
  const TrainingGraph scaled = trained(1024), plain = trained(0);
  EXPECT_FALSE(plain.loss_scale.valid());
  EXPECT_EQ(plain.clip_norm, 0);
  ASSERT_TRUE(scaled.loss_scale.valid());
  EXPECT_TRUE(scaled.gradient_scale.valid());
  EXPECT_TRUE(std::isinf(scaled.clip_norm)) << "the norm is taken, nothing is clipped";
  const auto gradientsOf = [](const TrainingGraph& training, const std::map<std::string, Constant>& more) {
    return runPasses(training, more).gradients;
  };
  const auto wants = gradientsOf(plain, {});
  const auto gots = gradientsOf(scaled, {{"loss_scale", makeScalar(kSingle, 1024)}});
  ASSERT_EQ(gots.size(), wants.size());
  for (const auto& [name, want] : wants) {
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(gots.at(name)[i], 1024 * want[i]) << name;
  }
}

// ---- files of half precision

TEST(NarrowFloats, AreWidenedWithTheirConstantsAndCasts) {
  Graph graph;
  graph.opset_imports[""] = 18;
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", kNarrow, {2});
  const ValueId w = builder.addValue("w", kNarrow, {2});
  graph.initializers[w] = WeightReference{"file", 0, 4};
  graph.value(w).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
  const ValueId half = builder.addConstant("half", makeScalar(kNarrow, 0.5));
  const ValueId scaled = builder.addValue("scaled", kNarrow, {2}),
                sum = builder.addValue("sum", kNarrow, {2});
  const ValueId wide = builder.addValue("wide", kSingle, {2}), back = builder.addValue("back", kNarrow, {2});
  builder.addNode("", "Mul", {w, half}, {scaled});
  builder.addNode("", "Add", {scaled, x}, {sum});
  builder.addNode("", "Cast", {sum}, {wide}, {{"to", static_cast<int64_t>(kSingle)}});
  builder.addNode("", "Cast", {wide}, {back}, {{"to", static_cast<int64_t>(kNarrow)}});
  graph.inputs = {x};
  graph.outputs = {back};
  EXPECT_TRUE(trainsNarrowFloats(graph));
  EXPECT_EQ(widenNarrowFloats(graph).source_types, (std::map<std::string, DataType>{{"w", kNarrow}}));
  for (const Value& value : graph.values) EXPECT_EQ(value.data_type, kSingle) << value.name;
  EXPECT_EQ(numericElements(*graph.constant(half)), std::vector<double>{0.5});
  EXPECT_EQ(graph.nodes[3].intAttribute("to", 0), static_cast<int64_t>(kSingle));
  EXPECT_FALSE(trainsNarrowFloats(graph));
}

}  // namespace
}  // namespace pipeshard::testing
