// A file is read for a plan and for an export alike.

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/graph/weight_role.h"
#include "planning/model/module_notes.h"
#include "planning/model/module_reading.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::vector<std::string> parametersOf(const Graph& graph) {
  std::vector<std::string> names;
  for (const auto& [id, initializer] : graph.initializers) {
    if (isMarkedParameter(graph.value(id))) names.push_back(graph.value(id).name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> outputsOf(const Graph& graph) {
  std::vector<std::string> names;
  for (const ValueId output : graph.outputs) names.push_back(graph.value(output).name);
  return names;
}

class ModuleReading : public ::testing::TestWithParam<const char*> {
 protected:
  ModuleReading()
      : as_read_(readForPlanning(std::string(PIPESHARD_SOURCE_DIR) + "/examples/" + GetParam(),
                                 planningReadOptions(""))) {}
  Graph as_read_;
};

TEST_P(ModuleReading, NamesParametersAlikeForPlansAndExports) {
  Graph planned = as_read_, written = as_read_;
  const RestoredModule plan = restoreModule(planned, {});
  const RestoredModule exported = restoreModule(
      written, {.form = {.loss = "", .optimizer_given = true}, .purpose = ModulePurpose::kExport});
  EXPECT_THAT(parametersOf(planned), Not(IsEmpty()));
  EXPECT_THAT(parametersOf(written), ElementsAreArray(parametersOf(planned)));
  EXPECT_EQ(exported.parameters.absent(), plan.parameters.absent());
  EXPECT_EQ(exported.parameters.other_names, plan.parameters.other_names);
  EXPECT_EQ(exported.reduced.found.weight_inputs, plan.reduced.found.weight_inputs);
  EXPECT_THAT(outputsOf(written), ElementsAreArray(outputsOf(as_read_)));
}

// h * 0.5 + h.detach() * 0.5, of which the exporter's optimizer has made one product.
Graph mergedWhereOneIsDetached() {
  Graph graph;
  graph.opset_imports = {{"", 20}};
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", DataType::kFloat32, {1, 4});
  graph.inputs = {x};
  const ValueId weight = builder.addConstant("w", makeConstant<float>({1, 4}, {1, 2, 3, 4}));
  graph.value(weight).metadata = {{"pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER"}};
  const auto add = [&](const std::string& op, std::vector<ValueId> inputs, const std::string& call,
                       const std::string& arguments) {
    const ValueId output = builder.addValue(call, DataType::kFloat32, {1, 4});
    builder.addNode("", op, std::move(inputs), {output});
    graph.nodes.back().metadata = {{"pkg.torch.onnx.fx_node", "%" + call +
                                                                  " : [num_users=1] = call_function[target="
                                                                  "torch.ops.aten." +
                                                                  call + ".default](args = (" + arguments +
                                                                  "), kwargs = {})"}};
    return output;
  };
  const ValueId half = add("Mul", {weight, x}, "mul", "%p_w, %x");
  graph.outputs = {add("Add", {half, half}, "add", "%mul, %mul_1")};
  graph.nodes.back().metadata.emplace_back(
      "pkg.torch.onnx.stack_trace",
      "File \"module.py\", line 9, in forward\n    h = h * 0.5 + h.detach() * 0.5");
  return graph;
}

// `inspect` shows what else is in the file.
TEST(ModuleReadings, OfAFileThatLostADetachAreRefusedButToLookAt) {
  Graph looked_at = mergedWhereOneIsDetached(), planned = looked_at;
  EXPECT_THAT(restoreModule(looked_at, {.form = {}, .keeps_refusal = true}).refusal,
              HasSubstr("gives it 'mul_1'"));
  EXPECT_THROW(restoreModule(planned, {}), Error);
}

// As scaled_dot_product_attention is written: a query whose keys are all hidden gets 0.
TEST(ModuleReadings, HideWholeRowsOfAnAttention) {
  Graph graph;
  graph.opset_imports = {{"", 20}};
  GraphBuilder builder(graph);
  const ValueId seen = builder.addValue("seen", DataType::kBool, {1, 4});
  graph.inputs = {seen};
  const ValueId zero = builder.addConstant("zero", makeScalar(DataType::kFloat32, 0));
  const ValueId lowest =
      builder.addConstant("lowest", makeScalar(DataType::kFloat32, -3.4028234663852886e38));
  const auto add = [&](const std::string& op, std::vector<ValueId> inputs, DataType type) {
    const ValueId output = builder.addValue(op + "_out", type, {1, 4});
    builder.addNode("", op, std::move(inputs), {output});
    graph.nodes.back().metadata = {
        {"pkg.torch.onnx.fx_node",
         "%attention : [num_users=1] = call_function[target=torch.ops.aten.scaled_dot_product_attention."
         "default](args = (%q, %k, %v, %mask), kwargs = {})"}};
    return output;
  };
  const ValueId hidden = add("Where", {seen, zero, lowest}, DataType::kFloat32);
  graph.outputs = {hidden, add("IsNaN", {hidden}, DataType::kBool)};
  restoreModule(graph, {});
  const Constant* number = graph.constant(graph.nodes.at(0).inputs.at(2));
  ASSERT_NE(number, nullptr);
  EXPECT_EQ(numericElements(*number).at(0), -std::numeric_limits<double>::infinity());
}

TEST(ModuleNotes, NameEqualMatricesThatMayBeOne) {
  ModuleParameters parameters;
  parameters.taken_as_one = {"'/e2/MatMul' and '/e3/MatMul'"};
  parameters.untold = {"'/u/MatMul' and '/v/MatMul'"};
  const std::vector<std::string> notes = moduleNotes(parameters);
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_THAT(notes[0], HasSubstr("trained as one"));
  EXPECT_THAT(notes[0], HasSubstr("'/e2/MatMul' and '/e3/MatMul'"));
  EXPECT_THAT(notes[1], HasSubstr("trained apart"));
  EXPECT_THAT(notes[1], HasSubstr("do_constant_folding=False"));
  EXPECT_THAT(notes[1], HasSubstr("'/u/MatMul' and '/v/MatMul'"));
}

TEST(ModuleNotes, SayWhatTorchScriptDoesNotShow) {
  ModuleParameters parameters;
  parameters.torchscript = true;
  EXPECT_THAT(moduleNotes(parameters), ElementsAreArray({HasSubstr("do not show detach(), no_grad()")}));
  EXPECT_TRUE(moduleNotes(parameters, false).empty());
  parameters.keras = true;  // by tf2onnx or Keras' own export: PyTorch only runs it
  EXPECT_TRUE(moduleNotes(parameters).empty());
}

TEST(ModuleNotes, NameFoldedWeightsOfRecurrentLayers) {
  ModuleParameters parameters;
  parameters.recurrent = {"onnx::LSTM_209 (of 'enc.rnn')"};
  EXPECT_THAT(moduleNotes(parameters),
              ElementsAreArray({AllOf(HasSubstr("both biases in one tensor"),
                                      HasSubstr("under its names: onnx::LSTM_209 (of 'enc.rnn')"))}));
}

INSTANTIATE_TEST_SUITE_P(Examples, ModuleReading, ::testing::Values("gpt2.onnx", "llama.onnx", "mlp.onnx"),
                         [](const auto& info) {
                           const std::string name = info.param;
                           return name.substr(0, name.find('.'));
                         });

}  // namespace
}  // namespace pipeshard
