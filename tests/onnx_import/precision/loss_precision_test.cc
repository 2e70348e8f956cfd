// What is made of losses stays float32 to the end: their weights, sums and means.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/loss/loss.h"
#include "onnx_import/precision/mixed_precision.h"
#include "onnx_import/precision/precision.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

// h = x w;  logs = log(softmax(h));  result = (mean(h) + mean(logs^T / 2)) / 2
// weighed = softmax(h) / 2;  prediction = (weighed w) / 2;  ratio = prediction / 2
struct ModelWithTerms {
  Graph graph;
  GraphBuilder builder{graph};
  ModelWithTerms() {
    graph.opset_imports[""] = 18;
    const ValueId x = builder.addValue("x", DataType::kFloat32, {4, 4});
    graph.inputs = {x};
    const ValueId w = builder.addConstant("w", makeConstant<float>({4, 4}, std::vector<float>(16, 0.1f)));
    graph.value(w).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
    const ValueId half = builder.addConstant("half", makeConstant<float>({}, {0.5f}));
    const ValueId h = op("MatMul", {x, w}, "h", {4, 4});
    const ValueId logs = op("Transpose", {op("LogSoftmax", {h}, "logs", {4, 4})}, "turned", {4, 4});
    const ValueId term = mean(op("Mul", {logs, half}, "smooth", {4, 4}), "term");
    const ValueId total = op("Add", {mean(h, "loss"), term}, "total", {});
    const ValueId weighed = op("Mul", {op("Softmax", {h}, "softmax", {4, 4}), half}, "weighed", {4, 4});
    const ValueId prediction =
        op("Mul", {op("MatMul", {weighed, w}, "product", {4, 4}), half}, "prediction", {4, 4});
    graph.outputs = {op("Mul", {total, half}, "result", {}), op("Mul", {prediction, half}, "ratio", {4, 4})};
  }
  ValueId op(const char* type, std::vector<ValueId> inputs, const char* name, Shape shape) {
    const ValueId output = builder.addValue(name, DataType::kFloat32, std::move(shape));
    builder.addNode("", type, std::move(inputs), {output});
    return output;
  }
  ValueId mean(ValueId of, const char* name) {
    const ValueId result = op("ReduceMean", {of}, name, {});
    graph.nodes.back().attributes["keepdims"] = int64_t{0};
    return result;
  }
  DataType typeOf(const std::string& name) const { return graph.dataType(findValue(graph, name)); }
  std::string reads(const std::string& name, size_t position) const {
    const NodeId producer = computeUseDef(graph).producer[findValue(graph, name).index()];
    return graph.value(graph.node(producer).inputs.at(position)).name;
  }
};

TEST(LossPrecision, TermsOfALossAreAddedUpInFloat32) {
  for (const DataType narrow : {DataType::kBfloat16, DataType::kFloat16}) {
    ModelWithTerms model;
    mixPrecision(model.graph, narrow);
    for (const char* name : {"logs", "turned", "smooth", "term", "loss", "total", "result"})
      EXPECT_EQ(model.typeOf(name), DataType::kFloat32) << name;
    EXPECT_EQ(model.reads("total", 0), "loss");
    EXPECT_EQ(model.reads("total", 1), "term");
    EXPECT_EQ(model.reads("result", 0), "total");
    for (const char* name : {"h", "weighed", "product", "prediction"})
      EXPECT_EQ(model.typeOf(name), narrow) << name << ": a product follows, or nothing float32 was before";
    EXPECT_EQ(model.typeOf("ratio"), DataType::kFloat32) << "an output keeps its type";
    EXPECT_NE(model.reads("ratio", 0), "prediction");
  }
}

TEST(LossPrecision, IsNotWhatTheUserKeeps) {
  ModelWithTerms model;
  const MixedNodes nodes = mixPrecision(model.graph, DataType::kBfloat16, {"^Mul$"});
  EXPECT_EQ(nodes.operators.at("Mul").float32, 5U);
  EXPECT_EQ(nodes.kept, 3U) << "weighed, prediction, ratio";
}

// In float64 a number of --loss is what was given; mixed precision computes with that of float32.
TEST(LossPrecision, NumbersOfTheLossAreThoseThatAreGiven) {
  const auto numbersOf = [](const auto& widen) {
    Graph graph = graphFromText(R"(<ir_version: 10, opset_import: ["" : 18]>
      g (float[4,3] scores) => (float[4,3] y) { y = Identity(scores) })");
    attachLoss(graph, parseLoss("cross-entropy:y,labels,smoothing=0.1+0.3*mse:y,goal"));
    widen(graph);
    std::vector<double> numbers;
    for (const auto& [id, initializer] : graph.initializers) {
      const bool number = graph.dataType(id) == DataType::kFloat64 && graph.shape(id).empty();
      if (number) numbers.push_back(numericElements(*graph.constant(id)).front());
    }
    return numbers;
  };
  EXPECT_THAT(numbersOf([](Graph& graph) { setPrecision(graph, DataType::kFloat64); }),
              ::testing::UnorderedElementsAre(1 - 0.1, -0.1, 0.3));
  EXPECT_THAT(numbersOf([](Graph& graph) { widenToFloat64(graph); }),
              ::testing::UnorderedElementsAre(static_cast<double>(static_cast<float>(1 - 0.1)),
                                              static_cast<double>(-0.1F), static_cast<double>(0.3F)));
}

}  // namespace
}  // namespace pipeshard::testing
