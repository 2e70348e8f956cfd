// Which outputs are taken for gradients, and what is left of a graph without them.
#include "onnx_import/autodiff/imported_backward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/graph/graph_print.h"
#include "onnx_import/autodiff/parameters.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// y = x w + b, loss = sum(y); outputs: the loss, then the given ones: a gradient of that shape each.
Graph graphWithOutputs(const std::vector<std::pair<std::string, Shape>>& outputs) {
  Graph graph;
  graph.opset_imports[""] = 18;
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", DataType::kFloat32, {2, 3});
  graph.inputs.push_back(x);
  const ValueId weight =
      builder.addConstant("fc.weight", makeConstant<float>({3, 4}, std::vector<float>(12, 0.5F)));
  const ValueId bias = builder.addConstant("fc.bias", makeConstant<float>({4}, {1, 2, 3, 4}));
  const ValueId product = builder.addValue("product", DataType::kFloat32, {2, 4});
  const ValueId sum = builder.addValue("sum", DataType::kFloat32, {2, 4});
  const ValueId loss = builder.addValue("loss", DataType::kFloat32, {});
  builder.addNode("", "MatMul", {x, weight}, {product});
  builder.addNode("", "Add", {product, bias}, {sum});
  builder.addNode("", "ReduceSum", {sum}, {loss}, {{"keepdims", int64_t{0}}});
  graph.outputs.push_back(loss);
  for (const auto& [name, shape] : outputs) {
    const ValueId output = builder.addValue(name, DataType::kFloat32, shape);
    builder.addNode("", "Identity", {sum}, {output});
    graph.outputs.push_back(output);
  }
  return graph;
}

std::vector<std::string> trainedNames(const Graph& graph) {
  std::vector<std::string> names;
  for (ValueId id : trainableParameters(graph)) names.push_back(graph.value(id).name);
  return names;
}

TEST(TakeBackward, LeavesAForwardModelAsItIs) {
  Graph graph = graphWithOutputs({{"grad_norm", {}}, {"logits", {2, 4}}, {"x.grad", {2, 3}}});
  const std::string before = printGraph(graph);
  EXPECT_TRUE(takeBackward(graph).gradients.empty());
  EXPECT_EQ(printGraph(graph), before);
}

TEST(TakeBackward, KnowsGradientsByTheirNames) {
  for (const char* name :
       {"grad_fc.weight", "fc.weight.grad", "fc_weight_grad", "gradient/fc/weight", "fc.weight:grad"}) {
    Graph graph = graphWithOutputs({{name, {3, 4}}});
    const ImportedBackward backward = takeBackward(graph);
    ASSERT_EQ(backward.gradients.size(), 1u) << name;
    EXPECT_EQ(backward.gradients[0].parameter, "fc.weight");
    EXPECT_EQ(backward.gradients[0].output, name);
    EXPECT_EQ(backward.operators, 1u);
    EXPECT_EQ(graph.outputs.size(), 1u);
    EXPECT_EQ(graph.nodes.size(), 3u);
    EXPECT_THAT(trainedNames(graph), ElementsAre("fc.weight")) << "what has no gradient is frozen";
  }
}

TEST(TakeBackward, TheUserHasTheLastWord) {
  Graph graph = graphWithOutputs({{"grad_fc.weight", {3, 4}}});
  takeBackward(graph);
  overrideParameters(graph, {"bias"}, {"weight"});
  EXPECT_THAT(trainedNames(graph), ElementsAre("fc.bias"));
}

TEST(TakeBackward, RefusesGradientsOfWhatIsNotThere) {
  Graph transposed = graphWithOutputs({{"grad_fc.weight", {4, 3}}});
  EXPECT_ERROR(takeBackward(transposed), ErrorCode::kBadModel,
               "'grad_fc.weight' float32[4,3] is called a gradient, but weight 'fc.weight' is");
  Graph folded = graphWithOutputs({{"grad_fc.bias", {4}}, {"grad_head.weight", {4, 3}}});
  EXPECT_ERROR(takeBackward(folded), ErrorCode::kBadModel,
               "'grad_head.weight' float32[4,3] is called a gradient, but no weight or input has the rest of "
               "its name");
}

}  // namespace
}  // namespace pipeshard
