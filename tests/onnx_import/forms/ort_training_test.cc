// ONNX Runtime's training artifacts, as tests/oracle/make_forms.py writes them after the real ones.
#include "onnx_import/forms/ort_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/imported_backward.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/forms/model_form.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/interpreter.h"
#include "tests/onnx_import/forms/recognised_form.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Graph ortFile(const std::string& name) {
  return readModel(PIPESHARD_SOURCE_DIR "/tests/golden/forms/" + name + ".onnx");
}

std::vector<std::string> namesOf(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<std::string> names;
  for (ValueId id : values) names.push_back(graph.value(id).name);
  return names;
}

// Loss and gradients of the reduced graph, as PyTorch has them for the same batch.
void expectPyTorchsNumbers(const Graph& reduced, const std::string& name) {
  const Graph data = ortFile(name + "_data");
  Tensors given;
  for (const auto& [id, initializer] : data.initializers)
    given.emplace(data.value(id).name, std::get<Constant>(initializer));
  PrepareOptions options;
  options.dimensions = {{"batch_size", 8}};
  options.supported = hasKernel;
  const Graph graph = prepareModel(reduced, options);
  const Tensors results = Interpreter(graph).run(given);
  for (ValueId output : graph.outputs) {
    const std::string& value = graph.value(output).name;
    if (!given.contains(value)) continue;
    EXPECT_LT(relativeError(results.at(value), given.at(value)), 1e-5) << value;
  }
}

TEST(OrtTraining, GradientsOfTheAccumulatorsAreOutputs) {
  Graph graph = ortFile("ort_training");
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_EQ(reduced.found.form, ModelForm::kOrtTraining);
  EXPECT_THAT(reduced.found.why, HasSubstr("4 gradients are added to buffers"));
  EXPECT_EQ(reduced.loss, "onnx::loss::2");
  EXPECT_THAT(reduced.others, ElementsAre("output"));
  EXPECT_THAT(reduced.found.weight_inputs, ElementsAre("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"));
  EXPECT_THAT(namesOf(graph, graph.inputs),
              ElementsAre("input", "labels", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"));
  EXPECT_THAT(namesOf(graph, graph.outputs),
              ElementsAre("onnx::loss::2", "output", "fc1.weight_grad", "fc1.bias_grad", "fc2.weight_grad",
                          "fc2.bias_grad"));
  verifyGraph(graph);
  expectPyTorchsNumbers(graph, "ort_training");
}

TEST(OrtTraining, WeightsWithoutAnAccumulatorAreFrozen) {
  Graph graph = ortFile("ort_training_frozen");
  const ReducedForm reduced = reduceForm(graph);
  EXPECT_THAT(reduced.found.weight_inputs, ElementsAre("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"));
  EXPECT_THAT(namesOf(graph, graph.outputs),
              ElementsAre("onnx::loss::2", "output", "fc1.bias_grad", "fc2.weight_grad"));
  expectPyTorchsNumbers(graph, "ort_training_frozen");
}

TEST(OrtTraining, TheBackwardPassIsTakenOut) {
  Graph graph = ortFile("ort_training");
  reduceForm(graph);
  const ImportedBackward backward = takeBackward(graph);
  ASSERT_THAT(backward.gradients, SizeIs(4));
  EXPECT_EQ(backward.gradients[3].parameter, "fc2.bias");
  EXPECT_EQ(backward.operators, 9u);
  EXPECT_THAT(graph.nodes, SizeIs(4)) << "Gemm, Relu, Gemm, SoftmaxCrossEntropyLoss";
}

TEST(OrtTraining, OneGradientOfTwoWeightsIsTwoOutputs) {
  Graph graph = ortFile("ort_training");
  for (Node& node : graph.nodes) {  // two biases that are always added together
    if (node.op_type == "InPlaceAccumulatorV2" && node.name == "GradientAccumulator1")
      node.inputs[1] = findValue(graph, "fc1.weight_grad");
  }
  graph.value(findValue(graph, "fc1.bias")).shape = graph.value(findValue(graph, "fc1.weight")).shape;
  reduceForm(graph);
  const ImportedBackward backward = takeBackward(graph);
  ASSERT_THAT(backward.gradients, SizeIs(4));
  EXPECT_EQ(backward.gradients[0].parameter, "fc1.weight");
  EXPECT_EQ(backward.gradients[1].parameter, "fc1.bias");
  EXPECT_NE(backward.gradients[0].output, backward.gradients[1].output);
}

TEST(OrtTraining, AnAccumulatorOfNoWeightIsRefused) {
  Graph graph = ortFile("ort_training");
  graph.value(findValue(graph, "fc1.bias")).name = "renamed";
  EXPECT_ERROR(reduceForm(graph), ErrorCode::kBadModel, "GradientAccumulator1", "adds 'fc1.bias_grad'",
               "is the weight 'fc1.bias'");
}

TEST(OrtTraining, TheEvalModelIsAForwardPass) {
  const FoundForm form = recogniseForm(ortFile("ort_eval"));
  EXPECT_EQ(form.form, ModelForm::kForwardWithLoss);
  EXPECT_THAT(form.weight_inputs, ElementsAre("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"));
}

TEST(OrtTraining, TheOptimizerAloneIsRefused) {
  EXPECT_ERROR(recogniseForm(ortFile("ort_optimizer")), ErrorCode::kBadModel,
               "give their training_model.onnx",
               "--optimizer adamw:lr=...,beta1=0.9,beta2=0.999,eps=1e-06,weight_decay=0.01", "adam_mode 1");
}

TEST(OrtTraining, ADumpOfOrtModuleIsRefused) {
  Graph graph = ortFile("ort_training");
  graph.nodes.front().domain = "com.microsoft";
  graph.nodes.front().op_type = "YieldOp";
  EXPECT_ERROR(recogniseForm(graph), ErrorCode::kBadModel, "a dump of ORTModule",
               "export the module with its loss instead");
}

}  // namespace
}  // namespace pipeshard::testing
