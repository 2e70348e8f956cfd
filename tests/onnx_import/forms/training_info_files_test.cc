// Files with a TrainingInfoProto, made with onnx and numpy alone (tests/oracle/make_training_info.py): steps
// that are trained here are numpy's, and nothing is lost between reading and writing.
#include "onnx_import/forms/training_info_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/parameters.h"
#include "onnx_import/autodiff/training.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/training_info.h"
#include "onnx_import/format/writer.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/interpreter.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Graph infoFile(const std::string& name) {
  return readModel(PIPESHARD_SOURCE_DIR "/tests/golden/forms/training_info_" + name + ".onnx");
}

std::vector<std::string> valueNames(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<std::string> names;
  for (ValueId id : values) names.push_back(graph.value(id).name);
  return names;
}

std::vector<std::string> trainedNames(const Graph& graph) {
  return valueNames(graph, trainableParameters(graph));
}

// Loss and weights after each of the steps that `data` has, trained as the reduced file says.
void expectNumpysSteps(const Graph& reduced, const OptimizerSpec& optimizer, const Graph& data) {
  const auto given = [&](const std::string& name) { return *data.constant(findValue(data, name)); };
  PrepareOptions options;
  options.dimensions = {{"batch", given("labels").shape[0]}};
  options.supported = hasKernel;
  ForwardGraph forward;
  forward.graph = prepareModel(reduced, options);
  forward.loss = findValue(forward.graph, "loss");
  for (ValueId id : forward.graph.inputs) forward.inputs.push_back({id, 0});
  const TrainingGraph training = buildTrainingGraph(std::move(forward), optimizer);
  const Graph& graph = training.graph;
  std::vector<NodeId> passes, update;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    (training.node_phase[n] == Phase::kUpdate ? update : passes).emplace_back(n);
  Tensors content = {{"x", given("x")}, {"labels", given("labels")}};
  for (const Parameter& parameter : training.parameters) {
    const std::string& name = graph.value(parameter.value).name;
    content[name] = *graph.constant(parameter.value);
    for (const auto& state : parameter.states) {
      const Shape& shape = graph.shape(state.value);
      content[graph.value(state.value).name] = {DataType::kFloat32, shape,
                                                std::vector<std::byte>(elementCount(shape) * sizeof(float))};
    }
  }
  for (int step = 1; step <= 2; ++step) {
    Tensors computed = Interpreter(graph, passes).run(content);
    if (step == 1) {
      EXPECT_LT(relativeError(computed.at("loss"), given("loss")), 1e-6);
    }
    Tensors to_update = content;
    if (training.step.valid()) to_update["step"] = makeConstant<int64_t>({}, {step});
    for (const Parameter& parameter : training.parameters) {
      ASSERT_EQ(parameter.gradient_parts.size(), 1u);
      to_update[graph.value(parameter.gradient).name] =
          computed.at(graph.value(parameter.gradient_parts[0]).name);
    }
    const Tensors updated = Interpreter(graph, update).run(to_update);
    for (const Parameter& parameter : training.parameters) {
      const std::string& name = graph.value(parameter.value).name;
      content[name] = updated.at(graph.value(parameter.updated).name);
      EXPECT_LT(relativeError(content[name], given(fmt::format("{}.{}", name, step))), 2e-6) << name;
      for (const auto& state : parameter.states)
        content[graph.value(state.value).name] = updated.at(graph.value(state.updated).name);
    }
  }
}

TEST(TrainingInfo, IsLossParametersAndOptimizer) {
  for (const auto& [name, optimizer] :
       {std::pair("momentum", "sgd:lr=0.1,momentum=0.8,weight_decay=0.001,nesterov=1"),
        std::pair("adamw", "adamw:lr=0.01,beta1=0.9,beta2=0.999,eps=1e-08,weight_decay=0.1"),
        std::pair("two_steps", "sgd:lr=0.1,momentum=0,weight_decay=0.01,nesterov=0"),
        std::pair("plain", "sgd:lr=0.1,momentum=0.9,weight_decay=0,nesterov=0")}) {
    SCOPED_TRACE(name);
    Graph graph = infoFile(name);
    const ReducedForm reduced = reduceForm(graph);
    EXPECT_EQ(reduced.found.form, ModelForm::kTrainingInfo);
    EXPECT_THAT(reduced.found.why,
                HasSubstr(name == std::string("plain") ? "the algorithm computes gradients of 'loss'"
                                                       : "Gradient operators give gradients of 'loss'"));
    EXPECT_EQ(reduced.loss, "loss");
    EXPECT_THAT(reduced.others, ElementsAre("scores"));
    ASSERT_TRUE(reduced.optimizer.has_value());
    EXPECT_EQ(optimizerToString(reduced.optimizer->spec), optimizer);
    verifyGraph(graph);
    EXPECT_EQ(takeBackward(graph).gradients.size(), name == std::string("plain") ? 4u : 0u);
    EXPECT_THAT(valueNames(graph, graph.inputs), ElementsAre("x", "labels"));
    EXPECT_THAT(valueNames(graph, graph.outputs), ElementsAre("scores", "loss"));
    EXPECT_THAT(trainedNames(graph), ElementsAre("w1", "b1", "w2", "b2"));
    EXPECT_TRUE(trainingInfo(graph).empty());
    for (const Node& node : graph.nodes) EXPECT_TRUE(node.domain.empty()) << describeNode(node);
    expectNumpysSteps(graph, reduced.optimizer->spec, infoFile(std::string(name) + "_data"));
  }
}

TEST(TrainingInfo, SaysWhatOfItIsNotTaken) {
  Graph graph = infoFile("momentum");
  EXPECT_THAT(
      reduceForm(graph).notes,
      ElementsAre("the file's initialization is not done: training starts with what the file has "
                  "(--weights random:NAME_REGEX draws weights): w1 (RandomNormal), w2 (RandomNormal)"));
  graph = infoFile("two_steps");
  EXPECT_THAT(reduceForm(graph).notes,
              ElementsAre("update_binding also sets what no update reads, left out: g_w1, g_b1, g_w2, g_b2"));
}

TEST(TrainingInfo, IsTheSameWhenItIsTakenApartAndPutTogether) {
  for (const char* name : {"momentum", "adamw", "two_steps"}) {
    const Graph graph = infoFile(name);
    Graph again = graph;
    setTrainingInfo(again, {});
    EXPECT_TRUE(trainingInfo(again).empty());
    setTrainingInfo(again, trainingInfo(graph));
    const Graph read = parseModel(serializeModel(again), "", name);
    Graph first = graph, second = read;
    EXPECT_EQ(optimizerToString(reduceForm(first).optimizer->spec),
              optimizerToString(reduceForm(second).optimizer->spec));
    onnx::ModelProto want, got;
    want.ParseFromString(serializeModel(graph));
    got.ParseFromString(serializeModel(read));
    ASSERT_EQ(got.training_info_size(), want.training_info_size());
    for (int i = 0; i < want.training_info_size(); ++i) {
      const auto& a = want.training_info(i);
      const auto& b = got.training_info(i);
      EXPECT_EQ(b.algorithm().node_size(), a.algorithm().node_size());
      EXPECT_EQ(b.algorithm().initializer_size(), a.algorithm().initializer_size());
      EXPECT_EQ(b.algorithm().input_size(), a.algorithm().input_size());
      EXPECT_EQ(b.algorithm().output_size(), a.algorithm().output_size());
      EXPECT_EQ(b.initialization().node_size(), a.initialization().node_size());
      EXPECT_EQ(b.initialization_binding_size(), a.initialization_binding_size());
      ASSERT_EQ(b.update_binding_size(), a.update_binding_size());
      for (int k = 0; k < a.update_binding_size(); ++k) {
        EXPECT_EQ(b.update_binding(k).SerializeAsString(), a.update_binding(k).SerializeAsString());
      }
    }
  }
}

}  // namespace
}  // namespace pipeshard::testing
