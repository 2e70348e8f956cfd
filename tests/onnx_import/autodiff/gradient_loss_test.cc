// Normalisation and losses.
#include <limits>

#include <gtest/gtest.h>

#include "onnx_import/autodiff/training.h"
#include "onnx_import/precision/precision.h"
#include "tests/onnx_import/autodiff/gradient_check.h"

namespace pipeshard::testing {
namespace {

TEST(Gradient, OfSoftmaxAndLogSoftmaxMatchesDifferencesOnEveryAxis) {
  for (const char* op_type : {"Softmax", "LogSoftmax"}) {
    for (int64_t axis : {0, 1, -1}) {
      TestGraph test;
      checkGradients(test, {test.op(op_type, {test.parameter("x", {2, 3, 4})}, {{"axis", axis}})});
    }
  }
}

// The second row sees nothing; zeros stand for what it would be.
TEST(Gradient, OfASafeSoftmaxIsZeroInARowThatIsHidden) {
  TestGraph test;
  const double hidden = -std::numeric_limits<double>::infinity();
  const ValueId mask = test.constant(makeConstant<double>({2, 3}, {0, 0, hidden, hidden, hidden, hidden}));
  const ValueId y = test.op("Softmax", {test.op("Add", {test.parameter("x", {2, 3}), mask})});
  const ValueId zero = test.constant(makeScalar(DataType::kFloat64, 0));
  const ValueId loss = test.weightedSum({test.op("Where", {test.op("IsNaN", {y}), zero, y})});
  const std::vector<double> slopes = elementsOf(trainAndRun(test, loss).gradients.at("x"));
  EXPECT_NE(slopes[0], 0);
  for (size_t i = 2; i < slopes.size(); ++i) EXPECT_EQ(slopes[i], 0) << i;
}

TEST(Gradient, OfLpNormalizationMatchesDifferencesForBothNormsOnEveryAxis) {
  for (int64_t p : {1, 2}) {
    for (int64_t axis : {0, 1, -1}) {
      TestGraph test;
      checkGradients(
          test, {test.op("LpNormalization", {test.parameter("x", {2, 3, 4})}, {{"axis", axis}, {"p", p}})});
    }
  }
  TestGraph test;
  checkGradients(test, {test.op("LpNormalization", {test.parameter("x", {2, 3})})});
}

TEST(Gradient, OfLayerNormalizationMatchesDifferencesInEveryInput) {
  for (int64_t axis : {-1, 1, -2}) {
    TestGraph test;
    const Shape normalized = axis == -1 ? Shape{5} : Shape{4, 5};
    const ValueId x = test.parameter("x", {3, 4, 5});
    const ValueId scale = test.parameter("scale", normalized);
    const ValueId y = test.op("LayerNormalization", {x, scale, test.parameter("bias", normalized)},
                              {{"axis", axis}, {"epsilon", 1e-3f}, {"stash_type", int64_t{11}}});
    checkGradients(test, {y});
  }
}

TEST(Gradient, OfLayerNormalizationWithoutBiasMatchesDifferences) {
  TestGraph test;
  const ValueId x = test.parameter("x", {3, 5});
  checkGradients(test, {test.op("LayerNormalization", {x, test.parameter("scale", {5})},
                                {{"stash_type", int64_t{11}}})});
}

Constant narrowed(const Constant& wide) {
  std::vector<float> elements;
  for (double element : elementsOf(wide)) elements.push_back(static_cast<float>(element));
  return makeConstant<float>(wide.shape, elements);
}

// Every gradient part of sum(tanh(LayerNormalization(x, scale, bias))), by name.
Tensors layerNormalizationGradients(DataType precision, const Tensors& contents) {
  ForwardGraph forward;
  Graph& graph = forward.graph;
  graph.opset_imports[""] = 18;
  GraphBuilder builder(graph);
  std::vector<ValueId> inputs;
  for (const auto& [name, content] : contents) {
    inputs.push_back(builder.addValue(name, DataType::kFloat32, content.shape));
    graph.initializers[inputs.back()] =
        WeightReference{"none", 0, static_cast<uint64_t>(graph.bytes(inputs.back()))};
  }
  const ValueId y = builder.addValue("y", DataType::kFloat32, {3, 5});
  const ValueId t = builder.addValue("t", DataType::kFloat32, {3, 5});
  forward.loss = builder.addValue("loss", DataType::kFloat32, {});
  builder.addNode("", "LayerNormalization", inputs, {y});
  builder.addNode("", "Tanh", {y}, {t});
  builder.addNode("", "ReduceSum", {t}, {forward.loss}, {{"keepdims", int64_t{0}}});
  setPrecision(graph, precision);
  const TrainingGraph training = buildTrainingGraph(std::move(forward), {});
  std::vector<NodeId> nodes;
  for (size_t n = 0; n < training.graph.nodes.size(); ++n) {
    if (training.node_phase[n] != Phase::kUpdate) nodes.push_back(NodeId(n));
  }
  Tensors given;
  for (const auto& [name, content] : contents)
    given[name] = precision == DataType::kFloat32 ? narrowed(content) : content;
  const Tensors computed = Interpreter(training.graph, nodes).run(given);
  Tensors gradients;
  for (const auto& [name, content] : contents) gradients[name] = computed.at(name + "_grad");
  return gradients;
}

TEST(Gradient, OfLayerNormalizationInFloat32ReadsTheForwardStatisticsAndAgreesWithFloat64) {
  const Tensors contents = {
      {"a_x", randomTensor({3, 5}, 1)}, {"b_scale", randomTensor({5}, 2)}, {"c_bias", randomTensor({5}, 3)}};
  const Tensors narrow = layerNormalizationGradients(DataType::kFloat32, contents);
  const Tensors wide = layerNormalizationGradients(DataType::kFloat64, contents);
  for (const auto& [name, gradient] : wide) {
    EXPECT_EQ(narrow.at(name).data_type, DataType::kFloat32);
    EXPECT_EQ(gradient.data_type, DataType::kFloat64);
    EXPECT_LT(relativeError(narrow.at(name), gradient), 1e-5) << name;
  }
}

struct LossCase {
  std::string reduction;
  bool weighted;
  bool ignoring;
  Shape scores;
};

std::vector<LossCase> lossCases() {
  std::vector<LossCase> cases;
  for (const char* reduction : {"none", "sum", "mean"}) {
    for (int flags = 0; flags < 4; ++flags) {
      cases.push_back({reduction, (flags & 1) != 0, (flags & 2) != 0, {6, 4}});
      cases.push_back({reduction, (flags & 1) != 0, (flags & 2) != 0, {2, 4, 3}});
    }
  }
  return cases;
}

void checkLossOperator(std::string_view op_type, const LossCase& c) {
  SCOPED_TRACE(c.reduction + (c.weighted ? " weighted" : "") + (c.ignoring ? " ignoring " : " ") +
               shapeToString(c.scores));
  TestGraph test;
  const ValueId scores = test.parameter("scores", c.scores);
  Shape shape = c.scores;
  shape.erase(shape.begin() + 1);
  const int64_t ignored = c.ignoring ? -100 : 3;
  std::vector<ValueId> inputs = {scores,
                                 test.constant(makeConstant<int64_t>(shape, {0, 3, ignored, 1, 2, ignored}))};
  if (c.weighted) inputs.push_back(test.constant(makeTensor({4}, {0.5, 1.5, 2, 0.25})));
  std::map<std::string, Attribute> attributes = {{"reduction", c.reduction}};
  if (c.ignoring) attributes["ignore_index"] = int64_t{-100};
  checkGradients(test, {test.op(op_type, std::move(inputs), std::move(attributes))});
}

TEST(Gradient, OfSoftmaxCrossEntropyLossMatchesDifferencesInEveryForm) {
  for (const LossCase& c : lossCases()) checkLossOperator("SoftmaxCrossEntropyLoss", c);
}

TEST(Gradient, OfNegativeLogLikelihoodLossMatchesDifferencesInEveryForm) {
  for (const LossCase& c : lossCases()) checkLossOperator("NegativeLogLikelihoodLoss", c);
}

TEST(Gradient, OfAScalarLossStartsAtOne) {
  TestGraph test;
  const ValueId x = test.parameter("x", {4, 3});
  const ValueId labels = test.constant(makeConstant<int64_t>({4}, {0, 1, 2, 1}));
  checkLossGradients(test, test.op("SoftmaxCrossEntropyLoss", {x, labels}));
}

}  // namespace
}  // namespace pipeshard::testing
