// Operators of training files that are lowered: against PyTorch, whose results golden/forms has
// (tests/oracle/make_forms.py).
#include <gtest/gtest.h>

#include "ir/operators/operator_facts.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/prepare/prepare.h"
#include "tests/onnx_import/autodiff/interpreter.h"
#include "tests/onnx_import/model_files.h"

namespace pipeshard::testing {
namespace {

constexpr const char* kExpected = ".expected";

// By value name: what a run of the prepared graph gives, and its constants.
Tensors runPrepared(const Graph& graph) {
  Tensors tensors = Interpreter(graph).run({});
  for (const auto& [id, initializer] : graph.initializers)
    tensors.emplace(graph.value(id).name, std::get<Constant>(initializer));
  return tensors;
}

TEST(TrainingOperators, GivePyTorchsResults) {
  const Graph raw = readModel(PIPESHARD_SOURCE_DIR "/tests/golden/forms/training_operators.onnx");
  Tensors expected;
  for (const auto& [id, initializer] : raw.initializers) {
    const std::string& name = raw.value(id).name;
    if (name.ends_with(kExpected))
      expected.emplace(name.substr(0, name.size() - std::string(kExpected).size()),
                       std::get<Constant>(initializer));
  }
  PrepareOptions options;
  options.supported = hasKernel;
  const Graph graph = prepareModel(raw, options);
  for (const Node& node : graph.nodes) EXPECT_TRUE(node.domain.empty()) << describeNode(node);
  const Tensors results = runPrepared(graph);
  ASSERT_GT(raw.outputs.size(), 60u);
  for (ValueId output : raw.outputs) {
    const std::string& name = raw.value(output).name;
    ASSERT_TRUE(results.contains(name)) << name;
    EXPECT_EQ(results.at(name).shape, expected.at(name).shape) << name;
    EXPECT_LT(relativeError(results.at(name), expected.at(name)), 1e-5) << name;
  }
}

TEST(TrainingOperators, MayLeaveOutTheirFirstOutput) {
  const Graph raw = graphFromText(R"(<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float[4,3] x, float[4,2] z) => (float[2] y) {
      "", sizes = com.microsoft.ConcatTraining <axis = 1> (x, z)
      y = Cast <to = 1> (sizes) })");
  PrepareOptions options;
  options.supported = hasKernel;
  const Tensors results = runPrepared(prepareModel(raw, options));
  ASSERT_TRUE(results.contains("y"));
  EXPECT_EQ(numericElements(results.at("y")), (std::vector<double>{3, 2}));
}

}  // namespace
}  // namespace pipeshard::testing
