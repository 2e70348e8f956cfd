// Numbers of torch.nn.functional.cross_entropy (PyTorch 2.15); label_smoothing is 0.1 where there is one.
#include "onnx_import/exporter/cross_entropies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/interpreter.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;
using testing::graphFromText;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Form {
  std::string reduction = "mean";
  int64_t ignore_index = -100;
  bool weighted = false;
  bool images = false;  // scores [2, 3, 2], not [4, 3]
  int opset = 20;
};

std::string mark(const std::string& arguments) {
  return "%cross_entropy_loss : [num_users=1] = "
         "call_function[target=torch.ops.aten.cross_entropy_loss.default](args = (" +
         arguments + "), kwargs = {})";
}

Graph exported(const Form& form, const std::string& arguments) {
  const std::string scores = form.images ? "float[2,3,2]" : "float[4,3]";
  const std::string labels = form.images ? "[2,2]" : "[4]";
  const std::string result = form.reduction == "none" ? labels : "";
  Graph graph =
      graphFromText(R"(<ir_version: 10, opset_import: ["" : )" + std::to_string(form.opset) + "]> g (" +
                    scores + " scores, int64" + labels + " labels, float[3] weights) => (float" + result +
                    " loss) { loss = SoftmaxCrossEntropyLoss <reduction = \"" + form.reduction +
                    "\", ignore_index = " + std::to_string(form.ignore_index) + "> (scores, labels" +
                    (form.weighted ? ", weights" : "") + ") }");
  graph.nodes[0].metadata = {{"pkg.torch.onnx.fx_node", mark(arguments)}};
  return graph;
}

std::vector<double> lossOf(const Form& form) {
  Graph graph = exported(form, "%linear, %y, None, 1, -100, 0.1");
  EXPECT_THAT(restoreCrossEntropies(graph), ElementsAre(HasSubstr("of a cross-entropy, which the exporter")));
  EXPECT_THAT(restoreCrossEntropies(graph), IsEmpty()) << "once";
  const Graph prepared = prepareModel(graph, {});
  testing::Tensors inputs = {
      {"scores", makeConstant<float>({4, 3}, {1, 2, 3, 0.5F, -1, 0, 2, 0, -1, 0.25F, 0.75F, -2})},
      {"labels", makeConstant<int64_t>({4}, {0, 2, 1, 2})},
      {"weights", makeConstant<float>({3}, {0.5F, 2, 1})}};
  if (form.images) {
    inputs["scores"] = makeConstant<float>({2, 3, 2}, {1, 0.5F, 2, -1, 3, 0, 2, 0.25F, 0, 0.75F, -1, -2});
    inputs["labels"] = makeConstant<int64_t>({2, 2}, {0, 2, 1, 2});
  }
  return testing::elementsOf(testing::Interpreter(prepared).run(inputs).at("loss"));
}

TEST(LabelSmoothing, IsPutBackForAMean) {
  EXPECT_NEAR(lossOf({}).at(0), 2.1653368, 1e-6);
  EXPECT_NEAR(lossOf({.ignore_index = 1}).at(0), 2.1749446, 1e-6);
  EXPECT_NEAR(lossOf({.weighted = true}).at(0), 2.1483030, 1e-6);
  EXPECT_NEAR(lossOf({.ignore_index = 1, .weighted = true}).at(0), 2.2033973, 1e-6);
  EXPECT_NEAR(lossOf({.ignore_index = 1, .weighted = true, .images = true}).at(0), 2.2033973, 1e-6);
}

TEST(LabelSmoothing, IsPutBackForASum) {
  EXPECT_NEAR(lossOf({.reduction = "sum"}).at(0), 8.6613474, 3e-6);
  EXPECT_NEAR(lossOf({.reduction = "sum", .ignore_index = 1, .weighted = true}).at(0), 5.5084929, 3e-6);
}

TEST(LabelSmoothing, IsPutBackForLossesOfTheirOwn) {
  const std::vector<double> each = lossOf({.reduction = "none", .ignore_index = 1, .weighted = true});
  const std::vector<double> expected = {1.2309767, 1.1808661, 0, 3.0966499};
  ASSERT_EQ(each.size(), expected.size());
  for (size_t i = 0; i < each.size(); ++i) EXPECT_NEAR(each[i], expected[i], 1e-6) << i;
}

TEST(LabelSmoothing, ThatTheModuleDoesNotHaveChangesNothing) {
  for (const char* arguments : {"%linear, %y, None, 1, -100, 0.0", "%linear, %y"}) {
    Graph graph = exported({}, arguments);
    EXPECT_THAT(restoreCrossEntropies(graph), IsEmpty());
    EXPECT_TRUE(graph.nodes.at(0).is("SoftmaxCrossEntropyLoss"));
  }
}

TEST(LabelSmoothing, ThatCannotBePutBackIsSaid) {
  Graph graph = exported({.opset = 17}, "%linear, %y, None, 1, -100, 0.1");
  EXPECT_THAT(restoreCrossEntropies(graph), ElementsAre(HasSubstr("opset 18 and later")));
  EXPECT_TRUE(graph.nodes.at(0).is("SoftmaxCrossEntropyLoss"));
}

// ---- probabilities for labels ----

std::vector<double> softLossOf(const std::string& reduction, const std::string& output,
                               const char* mark = "") {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] scores, float[2,3] labels) => (float)" +
                              output + R"( loss) {
      loss = SoftmaxCrossEntropyLoss <reduction = ")" +
                              reduction + R"("> (scores, labels) })");
  graph.nodes[0].metadata = {{"pkg.torch.onnx.fx_node", mark}};
  restoreCrossEntropies(graph);
  EXPECT_FALSE(graph.nodes.at(0).is("SoftmaxCrossEntropyLoss"));
  const Graph prepared = prepareModel(graph, {});
  const testing::Tensors computed = testing::Interpreter(prepared).run(
      {{"scores", makeConstant<float>({2, 3}, {1, 2, 3, 0.5F, -1, 0})},
       {"labels", makeConstant<float>({2, 3}, {0.2F, 0.3F, 0.5F, 1, 0, 0})}});
  return testing::elementsOf(computed.at("loss"));
}

// torch.nn.functional.cross_entropy of the same numbers.
TEST(SoftLabels, AreCrossEntropyWithProbabilities) {
  EXPECT_NEAR(softLossOf("mean", "").at(0), 0.8558683, 1e-6);
  EXPECT_NEAR(softLossOf("sum", "").at(0), 1.7117366, 1e-6);
  const std::vector<double> each = softLossOf("none", "[2]");
  EXPECT_NEAR(each.at(0), 1.1076060, 1e-6);
  EXPECT_NEAR(each.at(1), 0.6041306, 1e-6);
}

TEST(SoftLabels, AreSmoothedAsTheModuleHasIt) {
  const char* const mark =
      "%loss : [num_users=1] = call_function[target=torch.ops.aten.cross_entropy_loss.default](args = "
      "(%scores, %labels, None, 1, -100, 0.1), kwargs = {})";
  EXPECT_NEAR(softLossOf("mean", "", mark).at(0), 0.9042016, 1e-6);
  EXPECT_NEAR(softLossOf("sum", "", mark).at(0), 1.8084033, 1e-6);
  const std::vector<double> each = softLossOf("none", "[2]", mark);
  EXPECT_NEAR(each.at(0), 1.1376059, 1e-6);
  EXPECT_NEAR(each.at(1), 0.6707973, 1e-6);
}

TEST(SoftLabels, ClassNumbersStayWhatTheyAre) {
  Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
    g (float[2,3] scores, int64[2] labels) => (float loss) { loss = SoftmaxCrossEntropyLoss(scores, labels) })");
  EXPECT_THAT(restoreCrossEntropies(graph), IsEmpty());
  EXPECT_TRUE(graph.nodes.at(0).is("SoftmaxCrossEntropyLoss"));
}

}  // namespace
}  // namespace pipeshard
