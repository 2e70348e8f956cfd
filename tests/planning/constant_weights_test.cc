// Models whose weights are in Constant nodes: trained as if they were initializers, and exported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "tests/onnx_import/model_files.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using testing::elementsOf;
using ::testing::HasSubstr;
using testing::ModelFolder;

// x [N,2] -> Linear 2x2 and its bias -> a function that holds a matrix -> y
constexpr const char* kModel = R"(<ir_version: 8, opset_import: ["": 17, "my": 1]>
  g (float[N, 2] x) => (float[N, 2] y) {
    w = Constant <value = float[2, 2] {0.5, 0.25, -0.5, 0.125}> ()
    b = Constant <value_floats: floats = [0.5, 0.25]> ()
    m = MatMul(x, w)
    a = Add(m, b)
    t = Tanh(a)
    y = my.Fixed(t)
  }
  <domain: "my", opset_import: ["": 17]>
  Fixed (X) => (Y) {
    W = Constant <value = float[2, 2] {1, 0, 0, 1}> ()
    Y = MatMul(X, W)
  })";

class ConstantWeights : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.file(name); }
  CommandResult plan(const std::vector<std::string>& more = {}) {
    const std::string model = folder_.write("m.onnx", testing::parseText(kModel));
    std::vector<std::string> words = {"plan",      model, "--loss",      "mse:y,goal", "--dim", "N=4",
                                      "--cluster", "1x1", "--optimizer", "sgd:lr=0.1", "-o",    at("plan")};
    words.insert(words.end(), more.begin(), more.end());
    return runPipeshard(words);
  }

  ModelFolder folder_;
};

TEST_F(ConstantWeights, AreTrainedAndExported) {
  const CommandResult planned = plan();
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  EXPECT_THAT(planned.output + planned.errors, HasSubstr("trains 10 of 10 parameters in 3 tensors"));
  const CommandResult ran = runPipeshard({"run", at("plan"), "--steps", "2", "--checkpoint", at("saved")});
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  const CommandResult written =
      runPipeshard({"export", at("saved"), "-o", at("out.onnx"), "--safetensors", at("out.safetensors")});
  ASSERT_EQ(written.exit_code, 0) << written.errors;
  const Graph graph = readModel(at("out.onnx"));
  EXPECT_NE(elementsOf(graph, "w"), (std::vector<double>{0.5, 0.25, -0.5, 0.125}));
  EXPECT_NE(elementsOf(graph, "b"), (std::vector<double>{0.5, 0.25}));
  EXPECT_NE(elementsOf(graph, "Fixed.W"), (std::vector<double>{1, 0, 0, 1}));
  const std::string tensors = readFile(at("out.safetensors"));
  for (const char* name : {"\"w\"", "\"b\"", "\"Fixed.W\""}) EXPECT_THAT(tensors, HasSubstr(name));
  // and it can be trained on
  EXPECT_EQ(runPipeshard({"plan", at("out.onnx"), "--loss", "mse:y,goal", "--dim", "N=4", "--cluster", "1x1",
                          "-o", at("again")})
                .exit_code,
            0);
}

TEST_F(ConstantWeights, AreMeantByTrainAndFreeze) {
  const CommandResult planned = plan({"--freeze", "^w$"});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  EXPECT_THAT(planned.output + planned.errors, HasSubstr("trains 6 of 10 parameters in 2 tensors"));
}

}  // namespace
}  // namespace pipeshard
