// --precision float16: the scale of the loss, steps that are left out, and what is left of them in
// checkpoints.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/graph/graph.h"
#include "onnx_import/format/writer.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

Words together(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

struct Chain {
  float magnifies = 64;  // what the loss is multiplied with
  bool roots = false;    // the roots of all elements, whose gradient is infinite at 0
};

// Four layers y = Relu(x w), and loss = mean(magnifies * y): with a scale of 2^22 the gradient of y does not
// fit into float16.
void writeChain(const std::string& path, const Chain& chain) {
  constexpr int64_t kWidth = 8;
  Graph graph;
  graph.name = "chain";
  graph.opset_imports[""] = 18;
  GraphBuilder builder(graph);
  const auto value = [&](const std::string& name, Shape shape) {
    return builder.addValue(name, DataType::kFloat32, std::move(shape));
  };
  const auto op = [&](const char* type, std::vector<ValueId> inputs, const std::string& name, Shape shape) {
    const ValueId output = value(name, std::move(shape));
    builder.addNode("", type, std::move(inputs), {output});
    return output;
  };
  ValueId x = value("x", {8, kWidth});
  graph.inputs = {x};
  for (int layer = 0; layer < 4; ++layer) {
    std::vector<float> numbers(kWidth * kWidth);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.1f * std::cos(static_cast<float>(i + layer));
    for (int64_t i = 0; i < kWidth; ++i) numbers[i * (kWidth + 1)] = 0.5f;
    const std::string name = fmt::format("w{}", layer);
    const ValueId w = builder.addConstant(name, makeConstant<float>({kWidth, kWidth}, numbers));
    graph.value(w).metadata.emplace_back("pkg.torch.export.graph_signature.InputSpec.kind", "PARAMETER");
    x = op("MatMul", {x, w}, fmt::format("h{}", layer), {8, kWidth});
    x = op("Relu", {x}, fmt::format("y{}", layer), {8, kWidth});
  }
  const ValueId magnifies = builder.addConstant("magnifies", makeScalar(DataType::kFloat32, chain.magnifies));
  const ValueId large = op("Mul", {x, magnifies}, "large", {8, kWidth});
  const ValueId size = op(chain.roots ? "Sqrt" : "Abs", {large}, "size", {8, kWidth});
  const ValueId loss = op("ReduceMean", {size}, "loss", {});
  graph.node(NodeId(graph.nodes.size() - 1)).attributes["keepdims"] = int64_t{0};
  graph.outputs = {loss};
  writeModel(graph, path);
}

nlohmann::json jsonOf(const std::string& path) { return nlohmann::json::parse(readFile(path)); }

class Float16 : public ::testing::Test {
 protected:
  std::string planned(const std::string& name, const Words& words, const Chain& chain = {}) {
    writeChain(folder_.file("chain.onnx"), chain);
    const std::string plan = folder_.file(name);
    const CommandResult result =
        runPipeshard(together({"plan", folder_.file("chain.onnx"), "--precision", "float16", "--optimizer",
                               "adamw:lr=1e-2", "-o", plan},
                              words));
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return plan;
  }
  CommandResult run(const std::string& plan, int steps, const Words& words) {
    return runPipeshard(together({"run", plan, "--steps", std::to_string(steps)}, words));
  }
  // By step.
  std::vector<double> scalesOf(const std::string& log) {
    std::vector<double> scales;
    std::ifstream lines(log + "/steps.jsonl");
    for (std::string line; std::getline(lines, line);)
      scales.push_back(nlohmann::json::parse(line).at("loss_scale").get<double>());
    return scales;
  }

  const TemporaryFolder folder_;
};

// Which steps are left out, the scale, parameters and states: the same bits on 1, 2 and 4 stages.
TEST_F(Float16, AModelThatOverflowsTrainsOnAlikeOnAllNumbersOfStages) {
  std::vector<double> scales;
  for (const int stages : {1, 2, 4}) {
    const std::string name = std::to_string(stages);
    const std::string plan =
        planned("plan" + name, {"--cluster", "1x" + name, "--stages", "uniform:" + name, "--loss-scale",
                                "4194304", "--loss-scale-steps", "3", "--schedule", "1f1b"});
    const CommandResult ran =
        run(plan, 12, {"--log", folder_.file("log" + name), "--checkpoint", folder_.file("saved" + name)});
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    EXPECT_THAT(ran.output + ran.errors,
                AllOf(HasSubstr("step 1 was not applied on any rank"), HasSubstr("the gradient of 'w"),
                      HasSubstr("the scale of the loss is 2.09715e+06 now")));
    EXPECT_THAT(ran.output, AllOf(HasSubstr("of them left out"), HasSubstr("scale ")));
    if (stages == 1) {
      scales = scalesOf(folder_.file("log1"));
      ASSERT_EQ(scales.size(), 12u);
      EXPECT_EQ(scales[0], 4194304);
      EXPECT_EQ(scales[1], 2097152);
      int halved = 0, doubled = 0;
      for (size_t i = 1; i < scales.size(); ++i) {
        halved += scales[i] == scales[i - 1] / 2 ? 1 : 0;
        doubled += scales[i] == scales[i - 1] * 2 ? 1 : 0;
      }
      EXPECT_GE(halved, 2);
      EXPECT_GE(doubled, 1) << "three finite steps double it";
      continue;
    }
    EXPECT_EQ(scalesOf(folder_.file("log" + name)), scales);
    const CommandResult same =
        runPipeshard({"checkpoint", folder_.file("saved1"), "--compare", folder_.file("saved" + name)});
    EXPECT_EQ(same.exit_code, 0) << same.output << same.errors;
  }
}

TEST_F(Float16, ARunGoesOnWithTheScaleOfItsCheckpoint) {
  const std::string plan = planned("plan", {"--cluster", "1x2", "--stages", "uniform:2", "--loss-scale",
                                            "4194304", "--loss-scale-steps", "4"});
  const Words whole = {"--log", folder_.file("whole"), "--checkpoint", folder_.file("saved")};
  ASSERT_EQ(run(plan, 12, whole).exit_code, 0);
  const Words parts = {"--log", folder_.file("parts"), "--checkpoint", folder_.file("continued")};
  ASSERT_EQ(run(plan, 5, parts).exit_code, 0);
  const CommandResult ran = run(plan, 12, parts);
  ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_THAT(ran.output, HasSubstr("going on after step 5"));
  EXPECT_EQ(scalesOf(folder_.file("parts")), scalesOf(folder_.file("whole")));
  const CommandResult same =
      runPipeshard({"checkpoint", folder_.file("saved"), "--compare", folder_.file("continued")});
  EXPECT_EQ(same.exit_code, 0) << same.output << same.errors;
}

// No scale helps where a gradient is infinite by itself.
TEST_F(Float16, EndsWith82AndTheNameOfATensorWhereTheScaleFallsUnderOne) {
  const std::string plan = planned("plan", {"--cluster", "1x2", "--stages", "uniform:2", "--loss-scale", "4"},
                                   {.magnifies = 0, .roots = true});
  const CommandResult ran = run(plan, 20, {"--checkpoint", folder_.file("saved"), "--every", "1"});
  EXPECT_EQ(ran.exit_code, 82) << ran.output;
  EXPECT_THAT(ran.errors,
              AllOf(HasSubstr("step 3 was not applied on any rank"), HasSubstr("the gradient of 'w"),
                    HasSubstr("the scale of the loss has fallen under 1")));
  EXPECT_FALSE(std::filesystem::exists(folder_.file("saved") + "/step-000003"));
}

struct Layout {
  std::string name;
  Words words;
};
class Float16Layouts : public ::testing::TestWithParam<Layout> {};

// Beside one device, with clipping by the norm, whose bounds are those of the gradients without the scale.
TEST_P(Float16Layouts, EqualOneDevice) {
  const TemporaryFolder folder;
  const CommandResult result = runPipeshard(together(
      {"validate", "examples/gpt2.onnx", "--precision", "float16", "--optimizer", "adamw:lr=1e-3", "--steps",
       "3", "--clip-norm", "0.5", "--loss-scale", "1024", "--json", folder.file("result.json")},
      GetParam().words));
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, AllOf(HasSubstr("in float16, by the bounds above"), HasSubstr("PASS")));
  int states = 0;
  const nlohmann::json compared = jsonOf(folder.file("result.json"));
  for (const auto& tensor : compared.at("tensors")) {
    if (tensor.at("name") != "loss" || tensor.at("kind") != "optimizer state") continue;
    ++states;
    EXPECT_EQ(tensor.at("error").get<double>(), 0) << tensor.dump();
  }
  EXPECT_EQ(states, 3 * 2);  // the scale, and how many steps have been finite
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Float16Layouts,
    ::testing::Values(
        Layout{"two_by_two", {"--cluster", "2x2", "--stages", "uniform:2", "--microbatches", "2"}},
        Layout{"zero2", {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero2"}},
        Layout{"zero3", {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero3"}},
        Layout{"zero_bubble", {"--cluster", "1x2", "--schedule", "zb-h1", "--microbatches", "4"}},
        Layout{"interleaved",
               {"--cluster", "1x2", "--stages", "uniform:4", "--schedule", "interleaved", "--microbatches",
                "4"}},
        Layout{"megatron", {"--cluster", "1x4", "--method", "megatron:2,2,1"}}),
    [](const auto& info) { return info.param.name; });

// Both sides leave the same steps out, and change nothing.
TEST_F(Float16, ValidationSaysWhichStepsBothSidesLeaveOut) {
  writeChain(folder_.file("chain.onnx"), {});
  const CommandResult result =
      runPipeshard({"validate", folder_.file("chain.onnx"), "--precision", "float16", "--cluster", "1x2",
                    "--stages", "uniform:2", "--loss-scale", "2097152", "--steps", "4"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("left out on both sides"));
}

TEST_F(Float16, IsRefusedWhereItMeansNothing) {
  const auto refuses = [](const Words& words, int code, const std::string& message) {
    const CommandResult result =
        runPipeshard(together({"validate", "examples/mlp.onnx", "--cluster", "1x2"}, words));
    EXPECT_EQ(result.exit_code, code) << result.output;
    EXPECT_THAT(result.errors, HasSubstr(message));
  };
  refuses({"--precision", "float16", "--schedule", "pipedream"}, 78,
          "--precision float16: under the schedule pipedream stages make their updates at different times");
  refuses({"--precision", "bfloat16", "--loss-scale", "2"}, 64, "--loss-scale goes with --precision float16");
  refuses({"--loss-scale-steps", "2"}, 64, "--loss-scale-steps goes with --precision float16");
  refuses({"--precision", "float16", "--loss-scale", "1000"}, 64,
          "expected a power of two from 1 to 16777216");
  refuses({"--precision", "float16", "--loss-scale-steps", "1.5"}, 64, "expected a whole number of steps");
  refuses({"--precision", "float16", "--loss-scale", "2", "--schedule", "forward-only"}, 64,
          "nothing is trained");
}

TEST_F(Float16, IsSaidByPlanAndInspect) {
  const CommandResult inspected = runPipeshard({"inspect", "examples/gpt2.onnx", "--precision", "float16"});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.errors;
  EXPECT_THAT(inspected.output, HasSubstr("on activations"));
  EXPECT_THAT(inspected.output, HasSubstr("float16"));
  const std::string plan = planned("plan", {"--cluster", "1x2", "--loss-scale", "256"});
  EXPECT_EQ(jsonOf(plan + "/plan.json").at("precision"), "float16");
  EXPECT_EQ(jsonOf(plan + "/plan.json").at("loss_scale"), "256");
  EXPECT_THAT(readFile(plan + "/plan.json"),
              HasSubstr("the gradient of the loss is scaled: by 256 at first"));
}

}  // namespace
}  // namespace pipeshard
