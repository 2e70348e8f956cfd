#include "onnx_import/exporter/label_smoothing.h"

#include <gtest/gtest.h>

#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/interpreter.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using testing::graphFromText;

std::vector<double> lossOf(const std::string& reduction, const std::string& output, const char* mark = "") {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] scores, float[2,3] labels) => (float)" +
                              output + R"( loss) {
      loss = SoftmaxCrossEntropyLoss <reduction = ")" +
                              reduction + R"("> (scores, labels) })");
  graph.nodes[0].metadata = {{"pkg.torch.onnx.fx_node", mark}};
  EXPECT_EQ(takeSoftLabels(graph), 1);
  const Graph prepared = prepareModel(graph, {});
  const testing::Tensors computed = testing::Interpreter(prepared).run(
      {{"scores", makeConstant<float>({2, 3}, {1, 2, 3, 0.5F, -1, 0})},
       {"labels", makeConstant<float>({2, 3}, {0.2F, 0.3F, 0.5F, 1, 0, 0})}});
  return testing::elementsOf(computed.at("loss"));
}

// torch.nn.functional.cross_entropy of the same numbers.
TEST(SoftLabels, AreCrossEntropyWithProbabilities) {
  EXPECT_NEAR(lossOf("mean", "").at(0), 0.8558683, 1e-6);
  EXPECT_NEAR(lossOf("sum", "").at(0), 1.7117366, 1e-6);
  const std::vector<double> each = lossOf("none", "[2]");
  EXPECT_NEAR(each.at(0), 1.1076060, 1e-6);
  EXPECT_NEAR(each.at(1), 0.6041306, 1e-6);
}

TEST(SoftLabels, AreSmoothedAsTheModuleHasIt) {
  const char* const mark =
      "%loss : [num_users=1] = call_function[target=torch.ops.aten.cross_entropy_loss.default](args = "
      "(%scores, %labels, None, 1, -100, 0.1), kwargs = {})";
  EXPECT_NEAR(lossOf("mean", "", mark).at(0), 0.9042016, 1e-6);
  EXPECT_NEAR(lossOf("sum", "", mark).at(0), 1.8084033, 1e-6);
  const std::vector<double> each = lossOf("none", "[2]", mark);
  EXPECT_NEAR(each.at(0), 1.1376059, 1e-6);
  EXPECT_NEAR(each.at(1), 0.6707973, 1e-6);
}

TEST(SoftLabels, ClassNumbersStayWhatTheyAre) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] scores, int64[2] labels) => (float loss) { loss = SoftmaxCrossEntropyLoss(scores, labels) })");
  EXPECT_EQ(takeSoftLabels(graph), 0);
  EXPECT_TRUE(graph.nodes.at(0).is("SoftmaxCrossEntropyLoss"));
}

}  // namespace
}  // namespace pipeshard
