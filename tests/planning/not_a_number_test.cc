// `validate` of a model whose gradient is not a number on one device either.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/onnx_import/model_files.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The root's slope at 0 is infinite, times 0. The loss is 0.
constexpr const char* kRootOfNothing = R"(<ir_version: 8, opset_import: ["": 18]>
  g (float[N, 2] x) => (float loss) <float[2, 2] weight = {0, 0, 0, 0}> {
    h = MatMul(x, weight)
    square = Mul(h, h)
    root = Sqrt(square)
    loss = ReduceMean <keepdims = 0> (root)
  })";

TEST(NotANumber, IsNoDifferenceAndNoPass) {
  const testing::ModelFolder folder;
  const std::string model = folder.write("m.onnx", testing::parseText(kRootOfNothing));
  for (const char* optimizer : {"sgd:lr=0.1", "adamw:lr=0.001"}) {
    const CommandResult result =
        runPipeshard({"validate", model, "--dim", "N=8", "--cluster", "1x2", "--microbatches", "2",
                      "--optimizer", optimizer, "--json", folder.file("result.json")});
    EXPECT_EQ(result.exit_code, 82) << optimizer << "\n" << result.output << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("gradient weight in step 1 is not a number (NaN or infinite) on one "
                                         "device either, at the same places"));
    EXPECT_THAT(result.output, Not(HasSubstr("PASS")));
    EXPECT_THAT(result.output, Not(HasSubstr("FAIL")));
    EXPECT_THAT(result.output, Not(HasSubstr("DIFFERS")));
    const auto json = nlohmann::json::parse(readFile(folder.file("result.json")));
    EXPECT_FALSE(json.at("passed").get<bool>());
  }
}

}  // namespace
}  // namespace pipeshard
