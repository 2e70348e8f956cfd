#include "onnx_import/exporter/evaluation_mode.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

// Two normalisations that share their statistics, as a module that is applied twice; and dropouts.
const char* const kTraining = R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3,4,4] x) => (float y, float[3] m2)
<float[3] scale = {1, 2, 3}, float[3] bias = {0, 0, 0}, float[3] mean = {4, 5, 6}, float[3] var = {1, 1, 1},
 float ratio = {0.25}, bool yes = {1}>
{
  a, m1, v1 = BatchNormalization <training_mode=1> (x, scale, bias, mean, var)
  b = Dropout (a, ratio, yes)
  c, m2, v2 = BatchNormalization <training_mode=1> (b, scale, bias, m1, v1)
  d = Dropout (c, ratio, yes)
  y = ReduceMean <keepdims=0> (d)
})";

Graph preparedGraph(const char* text) {
  PrepareOptions options;
  options.supported = [](const Node& node) { return !node.is("Dropout"); };
  return prepareModel(testing::graphFromText(text), options);
}

std::vector<const Node*> nodesOf(const Graph& graph, const char* op_type) {
  std::vector<const Node*> found;
  for (const Node& node : graph.nodes) {
    if (node.is(op_type)) found.push_back(&node);
  }
  return found;
}

TEST(EvaluationModeTest, DropoutsKeepEverythingAsItIs) {
  Graph graph = preparedGraph(kTraining);
  const size_t where = nodesOf(graph, "Where").size();
  ASSERT_EQ(where, 2U);
  const EvaluationMode mode = setEvaluationMode(graph);
  EXPECT_EQ(mode.drawn, 0);
  verifyGraph(graph);
  for (const ValueId input : graph.inputs) {
    const Value& value = graph.value(input);
    EXPECT_EQ(value.drawn ? value.drawn->probability : 1, 1) << value.name;
  }
  ASSERT_EQ(nodesOf(graph, "Where").size(), where);
  for (const Node* factor : nodesOf(graph, "Mul")) {
    const bool is_one = std::any_of(factor->inputs.begin(), factor->inputs.end(), [&](ValueId input) {
      const Constant* constant = graph.constant(input);
      return constant != nullptr && numericElements(*constant) == std::vector<double>{1};
    });
    EXPECT_TRUE(is_one) << describeNode(*factor);
  }
}

TEST(EvaluationModeTest, NormalizationsReadTheStatisticsThatTrainingKeeps) {
  Graph graph = preparedGraph(kTraining);
  setEvaluationMode(graph);
  const std::vector<const Node*> normalizations = nodesOf(graph, "BatchNormalization");
  ASSERT_EQ(normalizations.size(), 2U);
  for (const Node* node : normalizations) {
    EXPECT_EQ(node->intAttribute("training_mode", 0), 0);
    EXPECT_EQ(node->outputs.size(), 1U);
    EXPECT_EQ(graph.value(node->inputs.at(3)).name, "mean");
    EXPECT_EQ(graph.value(node->inputs.at(4)).name, "var");
  }
  ASSERT_EQ(graph.outputs.size(), 1U) << "an updated statistic is no output any more";
  EXPECT_EQ(graph.value(graph.outputs[0]).name, "y");
}

TEST(EvaluationModeTest, OtherRandomNumbersAreCounted) {
  Graph graph = preparedGraph(R"(<ir_version: 10, opset_import: ["" : 18]>
m (float[2,3] x) => (float y)
{
  u = RandomUniformLike (x)
  s = Add (x, u)
  y = ReduceMean <keepdims=0> (s)
})");
  const auto drawn = std::count_if(graph.inputs.begin(), graph.inputs.end(),
                                   [&](ValueId input) { return graph.value(input).drawn.has_value(); });
  EXPECT_EQ(setEvaluationMode(graph).drawn, drawn);
}

TEST(EvaluationModeTest, ADropoutOfAnotherFormIsRefused) {
  Graph graph = preparedGraph(kTraining);
  for (Node& node : graph.nodes) {
    if (node.is("Where")) node.inputs[1] = graph.inputs[0];
  }
  EXPECT_ERROR(setEvaluationMode(graph), ErrorCode::kBadModel, "Where", "evaluation mode");
}

}  // namespace
}  // namespace pipeshard
