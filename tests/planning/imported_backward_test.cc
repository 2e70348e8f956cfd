// A model that PyTorch exported with its backward pass (tests/oracle/make_joint.py): ours is compared with
// it.
#include <algorithm>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "tests/tools/command.h"

namespace pipeshard::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kModel = "tests/oracle/golden/joint.onnx";

TEST(ImportedBackward, ItsGradientsAreOurs) {
  const TemporaryFolder folder;
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--cluster", "1x2"},
                                             {"--cluster", "1x4", "--stages", "uniform:2"},
                                             {"--cluster", "1x2", "--stages", "auto", "--steps", "2"}}) {
    std::vector<std::string> line = {"validate", kModel, "--dim", "batch=12", "-o", folder.file("plan")};
    line.insert(line.end(), more.begin(), more.end());
    const CommandResult result = runPipeshard(line);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("gradient in the file        8 "));
    EXPECT_THAT(result.output, HasSubstr("not trained (--freeze, or no gradient in the file): scale"));
    std::filesystem::remove(folder.file("plan") + "/ranks.json");  // made again, with what is compared
    const CommandResult again = runPipeshard({"validate", folder.file("plan")});
    EXPECT_EQ(again.exit_code, 0) << again.errors;
    EXPECT_THAT(again.output, HasSubstr("gradient in the file        8 "));
  }
}

TEST(ImportedBackward, AnotherGradientInTheFileIsFound) {
  const TemporaryFolder folder;
  Graph graph = readModel(std::string(PIPESHARD_SOURCE_DIR "/") + kModel, {});
  const std::string gradient = "grad_second.weight";
  const ValueId output = findValue(graph, gradient);
  ASSERT_TRUE(output.valid());
  GraphBuilder builder(graph);
  const ValueId factor = builder.addConstant("factor", makeConstant<float>({}, {1.01F}));
  const ValueId changed = builder.addValue("changed", graph.dataType(output), *graph.value(output).shape);
  builder.addNode("", "Mul", {output, factor}, {changed});
  std::replace(graph.outputs.begin(), graph.outputs.end(), output, changed);
  graph.value(output).name = "unchanged";
  graph.value(changed).name = gradient;
  writeModel(graph, folder.file("model.onnx"));
  const CommandResult result =
      runPipeshard({"validate", folder.file("model.onnx"), "--cluster", "1x2", "--dim", "batch=8"});
  EXPECT_EQ(result.exit_code, 1) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("DIFFERS: gradient in the file second_weight"));
}

TEST(ImportedBackward, IsSaidNotToBeComparedWhereItCannotBe) {
  const CommandResult result =
      runPipeshard({"validate", kModel, "--cluster", "1x2", "--dim", "batch=8", "--precision", "float64"});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("the gradients are not compared: node "));
  EXPECT_THAT(result.output, Not(HasSubstr("gradient in the file   ")));
}

}  // namespace
}  // namespace pipeshard::testing
