// A file is read for a plan and for an export alike.

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
