// TrainingInfoProtos that pipeshard writes: read back they mean the same, ONNX's checker accepts the step
// that they describe, and onnx's own evaluator takes it (tests/oracle/make_training_info.py check).
#include "onnx_import/forms/describe_training.h"

#include <cstdlib>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/checker.h>

#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/training_info.h"
#include "onnx_import/format/writer.h"
#include "onnx_import/forms/combined_step.h"
#include "onnx_import/forms/model_form.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::string kForms = PIPESHARD_SOURCE_DIR "/tests/golden/forms/";
const std::vector<std::string> kParameters = {"w1", "b1", "w2", "b2"};

// As in make_training_info.py.
const std::map<std::string, std::string> kOptimizers = {
    {"sgd", "sgd:lr=0.1,momentum=0,weight_decay=0.01,nesterov=0"},
    {"momentum", "sgd:lr=0.1,momentum=0.9,weight_decay=0,nesterov=0"},
    {"nesterov", "sgd:lr=0.1,momentum=0.8,weight_decay=0.001,nesterov=1"},
    {"adam", "adam:lr=0.01,beta1=0.8,beta2=0.999,eps=1e-08,weight_decay=0.02"},
    {"adamw", "adamw:lr=0.01,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0.1"}};

std::string bytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Graph described(const std::string& optimizer) {
  Graph graph = readModel(kForms + "forward.onnx");
  describeTraining(graph, {"loss", kParameters, parseOptimizer(optimizer)});
  return graph;
}

// Set PIPESHARD_UPDATE_GOLDEN=1 to write the files anew; then look at them with make_training_info.py check.
TEST(DescribeTraining, WritesTheGoldenFiles) {
  for (const auto& [name, optimizer] : kOptimizers) {
    const std::string path = kForms + "described_" + name + ".onnx";
    const std::string bytes = serializeModel(described(optimizer));
    if (const char* update = std::getenv("PIPESHARD_UPDATE_GOLDEN"); update != nullptr && update[0] == '1')
      writeModel(described(optimizer), path);
    EXPECT_TRUE(bytes == bytesOf(path)) << path << " is another";
  }
}

TEST(DescribeTraining, IsReadBackAsTheSame) {
  for (const auto& [name, optimizer] : kOptimizers) {
    SCOPED_TRACE(name);
    Graph graph = parseModel(serializeModel(described(optimizer)), "", name);
    const ReducedForm reduced = reduceForm(graph);
    EXPECT_EQ(reduced.found.form, ModelForm::kTrainingInfo);
    EXPECT_EQ(reduced.loss, "loss");
    EXPECT_EQ(optimizerToString(reduced.optimizer->spec), optimizer);
    EXPECT_THAT(reduced.notes, IsEmpty());
    std::vector<std::string> trained;
    for (ValueId id : trainableParameters(graph)) trained.push_back(graph.value(id).name);
    EXPECT_EQ(trained, kParameters);
    for (const Node& node : graph.nodes) EXPECT_TRUE(node.domain.empty()) << describeNode(node);
  }
}

TEST(DescribeTraining, TrainsThoseThatAreNamed) {
  Graph graph = readModel(kForms + "forward.onnx");
  describeTraining(graph, {"loss", {"w2", "b2"}, parseOptimizer("adam:lr=0.5")});
  EXPECT_EQ(optimizerToString(reduceForm(graph).optimizer->spec),
            "adam:lr=0.5,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0");
  std::vector<std::string> trained;
  for (ValueId id : trainableParameters(graph)) trained.push_back(graph.value(id).name);
  EXPECT_THAT(trained, ElementsAre("w2", "b2"));
}

// The model's graph and the algorithm behind it, field by field, as ONNX defines the step.
TEST(DescribeTraining, IsAValidModelWithItsStep) {
  std::map<std::string, std::string> optimizers = kOptimizers;
  for (const char* schedule : {"schedule=cosine,warmup=2,steps=9", "schedule=one-cycle,steps=9", "warmup=3"})
    optimizers[schedule] = fmt::format("sgd:lr=0.1,momentum=0.9,{}", schedule);
  optimizers["lion"] = "lion:lr=0.1,schedule=step,step_size=3";
  for (const auto& [name, optimizer] : optimizers) {
    onnx::ModelProto model;
    ASSERT_TRUE(model.ParseFromString(serializeModel(described(optimizer))));
    ASSERT_EQ(model.training_info_size(), 1);
    const onnx::GraphProto algorithm = model.training_info(0).algorithm();
    model.mutable_graph()->mutable_node()->MergeFrom(algorithm.node());
    model.mutable_graph()->mutable_initializer()->MergeFrom(algorithm.initializer());
    model.mutable_graph()->mutable_output()->MergeFrom(algorithm.output());
    EXPECT_NO_THROW(onnx::checker::check_model(model, false, false, false)) << name;
  }
}

TEST(DescribeTraining, CallsItsValuesAsNoneOfTheModels) {
  Graph graph = readModel(kForms + "forward.onnx");
  graph.value(findValue(graph, "hidden")).name = "w1.updated";
  graph.value(findValue(graph, "sums")).name = "step";
  describeTraining(graph, {"loss", kParameters, parseOptimizer("adam:lr=0.5")});
  EXPECT_EQ(reduceForm(graph).optimizer->step, "step.1");
}

TEST(DescribeTraining, HasTheNumbersOfGroups) {
  Graph graph = readModel(kForms + "forward.onnx");
  describeTraining(graph, {"loss",
                           kParameters,
                           parseOptimizer("sgd:momentum=0.5,weight_decay=0.25"),
                           {parseParameterGroup("^b:weight_decay=0")}});
  const Graph algorithm = trainingInfo(graph).at(0).algorithm;
  std::map<std::string, float> decays;
  for (const Node& node : algorithm.nodes) {
    if (node.op_type == "Momentum") decays[node.name] = node.floatAttribute("norm_coefficient", -1);
  }
  EXPECT_EQ(decays, (std::map<std::string, float>{
                        {"w1.update", 0.25}, {"b1.update", 0}, {"w2.update", 0.25}, {"b2.update", 0}}));
}

TEST(DescribeTraining, TakesThePlaceOfAnother) {
  Graph graph = described("adam:lr=0.5");
  describeTraining(graph, {"loss", kParameters, parseOptimizer("sgd:lr=0.25")});
  EXPECT_EQ(trainingInfo(graph).size(), 1u);
  EXPECT_EQ(optimizerToString(reduceForm(graph).optimizer->spec),
            "sgd:lr=0.25,momentum=0,weight_decay=0,nesterov=0");
}

TEST(DescribeTraining, OfWhatIsNotThereIsRefused) {
  Graph graph = readModel(kForms + "forward.onnx");
  const OptimizerSpec sgd;
  EXPECT_ERROR(describeTraining(graph, {"error", kParameters, sgd}), ErrorCode::kConfiguration,
               "the loss 'error' is not in the model");
  EXPECT_ERROR(describeTraining(graph, {"loss", {"w1", "x"}, sgd}), ErrorCode::kConfiguration,
               "'x' is no initializer that the loss 'loss' depends on");
  EXPECT_ERROR(describeTraining(graph, {"loss", {}, sgd}), ErrorCode::kConfiguration, "names no parameter");
  graph.opset_imports[""] = 13;
  EXPECT_ERROR(describeTraining(graph, {"loss", kParameters, sgd}), ErrorCode::kConfiguration,
               "opset 16 or later; the model has 13");
}

}  // namespace
}  // namespace pipeshard::testing
