// Clipping by the norm of all gradients and by value, under plans of all kinds; and steps that end in NaN.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/graph/graph.h"
#include "onnx_import/format/writer.h"
#include "runtime/files/npz.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

struct Layout {
  std::string name;
  Words words;
};

Words together(Words first, const Words& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

nlohmann::json jsonOf(const std::string& path) { return nlohmann::json::parse(readFile(path)); }

class ClippedGpt2 : public ::testing::TestWithParam<Layout> {};

// In float64. The norm of the first gradients is about 3.
TEST_P(ClippedGpt2, EqualsOneDevice) {
  const TemporaryFolder folder;
  const auto validated = [&](const Words& clipping) {
    const CommandResult result =
        runPipeshard(together({"validate", "examples/gpt2.onnx", "--precision", "float64", "--optimizer",
                               "adamw:lr=1e-2", "--steps", "3", "--json", folder.file("result.json")},
                              together(GetParam().words, clipping)));
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    return jsonOf(folder.file("result.json"));
  };
  const nlohmann::json clipped = validated({"--clip-norm", "0.5"});
  int measures = 0;
  for (const auto& tensor : clipped.at("tensors")) {
    if (tensor.at("kind") != "measure") continue;
    ++measures;
    EXPECT_LE(tensor.at("error").get<double>(), 1e-12) << tensor.dump();
  }
  EXPECT_EQ(measures, 3 * 2);  // the norm, and what gradients are scaled with
  const nlohmann::json plain = validated({});
  EXPECT_EQ(clipped.at("steps")[0], plain.at("steps")[0]);
  EXPECT_NE(clipped.at("steps")[2], plain.at("steps")[2]);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ClippedGpt2,
    ::testing::Values(
        Layout{"two_by_two", {"--cluster", "2x2", "--stages", "uniform:2", "--microbatches", "2"}},
        Layout{"zero2", {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero2"}},
        Layout{"zero3", {"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero3"}},
        Layout{"one_f_one_b", {"--cluster", "1x4", "--schedule", "1f1b", "--microbatches", "4"}},
        Layout{"gpipe", {"--cluster", "1x4", "--schedule", "gpipe", "--microbatches", "4"}},
        Layout{"zero_bubble", {"--cluster", "1x2", "--schedule", "zb-h1", "--microbatches", "4"}},
        Layout{"interleaved",
               {"--cluster", "1x2", "--stages", "uniform:4", "--schedule", "interleaved", "--microbatches",
                "4"}},
        Layout{
            "data_parallel",
            {"--cluster", "1x2", "--stages", "uniform:1", "--method", "data-parallel", "--bucket", "1KiB"}},
        Layout{"megatron", {"--cluster", "1x4", "--method", "megatron:2,2,1"}}),
    [](const auto& info) { return info.param.name; });

TEST(Clipping, IsKeptByThePlanAndGivesTheSameBitsEveryTime) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x4", "--method", "megatron:2,1,2",
                    "--microbatches", "2", "--clip-norm", "0.5", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  EXPECT_EQ(jsonOf(plan + "/plan.json").at("clip_norm"), "0.5");
  for (const char* saved : {"first", "second"}) {
    const CommandResult ran = runPipeshard({"run", plan, "--steps", "4", "--checkpoint", folder.file(saved)});
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
    EXPECT_THAT(ran.output, HasSubstr("norm "));
  }
  EXPECT_EQ(runPipeshard({"checkpoint", folder.file("first"), "--compare", folder.file("second")}).exit_code,
            0);
  // edited, it is made again
  std::string text = readFile(plan + "/plan.json");
  text.replace(text.find("\"0.5\""), 5, "\"0.7\"");
  writeFile(plan + "/plan.json", text);
  EXPECT_EQ(runPipeshard({"validate", plan}).exit_code, 0);
  text.replace(text.find("\"0.7\""), 5, "\"-1\"");
  writeFile(plan + "/plan.json", text);
  const CommandResult refused = runPipeshard({"validate", plan});
  EXPECT_EQ(refused.exit_code, 78);
  EXPECT_THAT(refused.errors, HasSubstr("clip_norm"));
}

// One collective over all ranks, behind which every update comes; one rank lists the measures.
TEST(Clipping, TakesOneSumOverAllRanks) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan");
  const CommandResult planned =
      runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x4", "--stages", "uniform:2", "--method",
                    "zero2", "--schedule", "1f1b", "--clip-norm", "1", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  for (int rank = 0; rank < 4; ++rank) {
    const std::string own = folder.file("rank" + std::to_string(rank));
    const CommandResult expanded =
        runPipeshard({"plan", plan, "--expand-rank", std::to_string(rank), "-o", own});
    ASSERT_EQ(expanded.exit_code, 0) << expanded.errors;
    const nlohmann::json program = jsonOf(own + "/program.json");
    int sums = 0, updates = 0, measures = 0;
    for (const auto& instruction : program.at("instructions")) {
      const std::string kind = instruction.at("kind");
      if (kind == "update") ++updates;
      if (kind != "all_reduce") continue;
      const auto& buffer = program.at("buffers").at(instruction.at("inputs").at(0).get<size_t>());
      if (buffer.at("name") != "gradient_norm@squares") continue;
      EXPECT_EQ(program.at("groups").at(instruction.at("group").get<size_t>()), nlohmann::json({0, 1, 2, 3}));
      EXPECT_EQ(updates, 0);
      ++sums;
    }
    EXPECT_EQ(sums, 1);
    EXPECT_EQ(updates, 1);
    for (const auto& result : program.at("results")) measures += result.at("kind") == "measure" ? 1 : 0;
    EXPECT_EQ(measures, rank == 0 ? 2 : 0);
    const auto& guard = program.at("buffers").at(program.at("guard").get<size_t>());
    EXPECT_EQ(guard.at("name"), "gradient_norm@norm");
  }
}

TEST(Clipping, ByValueWorksUnderEverySchedule) {
  const TemporaryFolder folder;
  for (const Words& words : {Words{"--cluster", "1x2", "--stages", "uniform:1", "--method", "zero2"},
                             Words{"--cluster", "1x4", "--schedule", "pipedream", "--window", "6"}}) {
    const CommandResult result = runPipeshard(together(
        {"validate", "examples/llama.onnx", "--clip-value", "0.001", "--optimizer", "adamw", "--steps", "2"},
        words));
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  }
}

TEST(Clipping, IsRefusedWhereItMeansNothing) {
  const auto refuses = [](const Words& words, int code, const std::string& message) {
    const CommandResult result =
        runPipeshard(together({"validate", "examples/mlp.onnx", "--cluster", "1x2"}, words));
    EXPECT_EQ(result.exit_code, code) << result.output;
    EXPECT_THAT(result.errors, HasSubstr(message));
  };
  refuses({"--clip-norm", "1", "--schedule", "pipedream"}, 78,
          "--clip-norm: under the schedule pipedream stages make their updates at different times");
  refuses({"--clip-norm", "1", "--clip-value", "1"}, 64, "give one of them");
  refuses({"--clip-norm", "1", "--schedule", "forward-only"}, 64, "nothing is trained");
  refuses({"--clip-norm", "-1"}, 64, "expected a number above 0, or off");
  refuses({"--clip-value", "much"}, 64, "expected a number above 0, or off");
}

// Five batches of eight examples; one number of the third is not a number.
class NotANumber : public ::testing::Test {
 protected:
  void SetUp() override {
    NpzArray x{DataType::kFloat32, {40, 32}, std::vector<std::byte>(40 * 32 * 4)};
    std::vector<float> numbers(40 * 32);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i));
    std::memcpy(x.bytes.data(), numbers.data(), x.bytes.size());
    const NpzArray y = x;
    numbers[19 * 32] = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(x.bytes.data(), numbers.data(), x.bytes.size());
    writeNpz(folder_.file("data.npz"), {{"x", x}, {"y", y}});
  }

  std::string planned(const Words& words) {
    const std::string plan = folder_.file("plan");
    const CommandResult result =
        runPipeshard(together({"plan", "examples/mlp.onnx", "--dim", "batch=8", "--cluster", "1x2",
                               "--optimizer", "adamw:lr=1e-2", "-o", plan},
                              words));
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return plan;
  }
  CommandResult run(const std::string& plan, int steps, const Words& words) {
    return runPipeshard(
        together({"run", plan, "--steps", std::to_string(steps), "--data", folder_.file("data.npz")}, words));
  }

  const TemporaryFolder folder_;
};

TEST_F(NotANumber, StopsARunOrIsLeftOut) {
  const std::string plan = planned({"--stages", "uniform:2", "--microbatches", "2", "--clip-norm", "inf"});
  EXPECT_EQ(run(plan, 5, {}).exit_code, 82);
  const CommandResult skipped = run(plan, 5, {"--on-nan", "skip"});
  ASSERT_EQ(skipped.exit_code, 0) << skipped.errors;
  EXPECT_THAT(skipped.output + skipped.errors, AllOf(HasSubstr("step 3 was not applied on any rank"),
                                                     HasSubstr("the gradient of 'dense1.weight' "
                                                               "has nan (rank 0)")));
  EXPECT_THAT(skipped.output, HasSubstr("1 of them left out"));
}

// Bit by bit, on all ranks, with the states of the optimizer.
TEST_F(NotANumber, ChangesNothingInTheStepThatIsLeftOut) {
  const std::string plan = planned({"--stages", "uniform:1", "--method", "zero2", "--clip-norm", "0.5"});
  for (const int steps : {2, 3}) {
    const CommandResult ran =
        run(plan, steps, {"--on-nan", "skip", "--checkpoint", folder_.file(std::to_string(steps))});
    ASSERT_EQ(ran.exit_code, 0) << ran.errors;
  }
  const CommandResult same = runPipeshard({"checkpoint", folder_.file("2"), "--compare", folder_.file("3")});
  EXPECT_EQ(same.exit_code, 0) << same.output << same.errors;
}

// Whichever rank is heard first, and however far the writer of checkpoints has come.
TEST_F(NotANumber, MakesARunGoBackOnce) {
  const std::string plan = planned({"--stages", "uniform:2", "--microbatches", "2"});
  const CommandResult ran =
      run(plan, 5, {"--on-nan", "rewind", "--checkpoint", folder_.file("saved"), "--every", "1"});
  EXPECT_EQ(ran.exit_code, 82);
  const std::string said = ran.output + ran.errors, back = "going back to the newest checkpoint: ";
  ASSERT_THAT(said, HasSubstr(back));
  EXPECT_EQ(said.find(back), said.rfind(back)) << said;
  EXPECT_THAT(said, AllOf(HasSubstr("the loss of step 3 is nan"), Not(HasSubstr("no checkpoint of step"))));
}

// loss = mean(sqrt(|x v w|)) is finite where x is 0, its gradient is not.
void writeRootModel(const std::string& path, float first_weight = 1) {
  Graph graph;
  graph.name = "root";
  graph.opset_imports[""] = 17;
  GraphBuilder builder(graph);
  const auto value = [&](const char* name, Shape shape) {
    return builder.addValue(name, DataType::kFloat32, std::move(shape));
  };
  const ValueId x = value("x", {4, 4});
  std::vector<float> numbers(16);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::cos(static_cast<float>(i));
  numbers[0] = first_weight;
  const ValueId v = builder.addConstant("v", makeConstant<float>({4, 4}, numbers));
  numbers[0] = 1;
  const ValueId w = builder.addConstant("w", makeConstant<float>({4, 4}, numbers));
  const ValueId a = value("a", {4, 4}), b = value("b", {4, 4}), c = value("c", {4, 4}),
                d = value("d", {4, 4});
  const ValueId loss = value("loss", {});
  builder.addNode("", "MatMul", {x, v}, {a});
  builder.addNode("", "MatMul", {a, w}, {b});
  builder.addNode("", "Abs", {b}, {c});
  builder.addNode("", "Sqrt", {c}, {d});
  builder.addNode("", "ReduceMean", {d}, {loss}, {{"keepdims", int64_t{0}}});
  graph.inputs = {x};
  graph.outputs = {loss};
  writeModel(graph, path);
}

// A step of which the loss tells nothing: it is not counted as done, and not saved.
TEST(NotFiniteGradients, StopARunBeforeItSaves) {
  const TemporaryFolder folder;
  writeRootModel(folder.file("root.onnx"));
  writeNpz(folder.file("zero.npz"), {{"x", {DataType::kFloat32, {4, 4}, std::vector<std::byte>(64)}}});
  const std::string plan = folder.file("plan");
  const CommandResult planned = runPipeshard({"plan", folder.file("root.onnx"), "--cluster", "1x2",
                                              "--stages", "uniform:2", "--clip-norm", "inf", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const auto run = [&](const std::string& on_nan) {
    return runPipeshard({"run", plan, "--steps", "3", "--data", folder.file("zero.npz"), "--on-nan", on_nan,
                         "--checkpoint", folder.file(on_nan), "--every", "1"});
  };
  const CommandResult stopped = run("stop");
  EXPECT_EQ(stopped.exit_code, 82);
  EXPECT_THAT(stopped.errors, AllOf(HasSubstr("step 1 was not applied on any rank"),
                                    HasSubstr("the gradient of 'v' has"), HasSubstr("run --on-nan skip")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("stop") + "/step-000001"));
  const CommandResult rewound = run("rewind");
  EXPECT_EQ(rewound.exit_code, 82);
  EXPECT_THAT(rewound.output + rewound.errors, HasSubstr("going back to the newest checkpoint"));
  const CommandResult skipped = run("skip");
  EXPECT_EQ(skipped.exit_code, 0) << skipped.errors;
  EXPECT_THAT(skipped.output, HasSubstr("3 of them left out"));
}

// Without the norm nobody knows before the update; weights that are NaN are not saved all the same.
TEST(NotFiniteGradients, AreInNoCheckpoint) {
  const TemporaryFolder folder;
  writeRootModel(folder.file("root.onnx"));
  writeNpz(folder.file("zero.npz"), {{"x", {DataType::kFloat32, {4, 4}, std::vector<std::byte>(64)}}});
  const CommandResult planned = runPipeshard(
      {"plan", folder.file("root.onnx"), "--cluster", "1x2", "--boundary", "a", "-o", folder.file("plan")});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandResult ran = runPipeshard({"run", folder.file("plan"), "--steps", "1", "--data",
                                          folder.file("zero.npz"), "--checkpoint", folder.file("saved")});
  EXPECT_EQ(ran.exit_code, 82);
  EXPECT_THAT(ran.errors, AllOf(HasSubstr("there is no checkpoint of step 1"), HasSubstr("has nan")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("saved") + "/step-000001"));
}

// w begins with a column of zeros, whose root has an infinite slope, and m is a mask.
void writeSteepModel(const std::string& path) {
  Graph graph;
  graph.name = "steep";
  graph.opset_imports[""] = 17;
  GraphBuilder builder(graph);
  const auto value = [&](const char* name) { return builder.addValue(name, DataType::kFloat32, {4, 4}); };
  const ValueId x = value("x");
  std::vector<float> numbers(16, 1), mask(16);
  for (size_t row = 0; row < 4; ++row) numbers[row * 4 + 1] = 0;
  for (size_t row = 0; row < 4; ++row) mask[row * 4 + 2] = -std::numeric_limits<float>::infinity();
  const ValueId w = builder.addConstant("w", makeConstant<float>({4, 4}, numbers));
  const ValueId m = builder.addConstant("m", makeConstant<float>({4, 4}, mask));
  const ValueId v = builder.addConstant("v", makeConstant<float>({4, 4}, std::vector<float>(16)));
  const ValueId a = value("a"), b = value("b"), biased = value("biased"), c = value("c"), d = value("d");
  const ValueId loss = builder.addValue("loss", DataType::kFloat32, {});
  builder.addNode("", "MatMul", {x, w}, {a});
  builder.addNode("", "Sqrt", {a}, {b});
  builder.addNode("", "Add", {b, v}, {biased});
  builder.addNode("", "Add", {biased, m}, {c});
  builder.addNode("", "Exp", {c}, {d});
  builder.addNode("", "ReduceMean", {d}, {loss}, {{"keepdims", int64_t{0}}});
  graph.inputs = {x};
  graph.outputs = {loss};
  writeModel(graph, path);
}

// A finite loss says nothing of its gradients, and infinite weights are lost ones; a mask is infinite from
// the beginning.
TEST(NotFiniteGradients, InfinityIsInNoCheckpointUnlessItWasThere) {
  const TemporaryFolder folder;
  writeSteepModel(folder.file("steep.onnx"));
  std::vector<float> x(16, 1);
  std::vector<std::byte> bytes(64);
  std::memcpy(bytes.data(), x.data(), 64);
  writeNpz(folder.file("x.npz"), {{"x", {DataType::kFloat32, {4, 4}, bytes}}});
  const auto run = [&](const std::vector<std::string>& options, const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "plan", folder.file("steep.onnx"), "--cluster", "1x1", "--optimizer", "sgd:lr=0.1",
        "-o",   folder.file("plan")};
    words.insert(words.end(), options.begin(), options.end());
    const CommandResult planned = runPipeshard(words);
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    words = {"run",    folder.file("plan"),  "--steps",      "1",
             "--data", folder.file("x.npz"), "--checkpoint", folder.file("saved")};
    words.insert(words.end(), more.begin(), more.end());
    return runPipeshard(words);
  };
  const CommandResult spoiled = run({}, {});
  EXPECT_EQ(spoiled.exit_code, 82) << spoiled.errors;
  EXPECT_THAT(
      spoiled.errors,
      AllOf(HasSubstr("there is no checkpoint of step 1: rank 0: 'parameter/w' has -inf at [0,1] (4 of "
                      "the 16 values"),
            HasSubstr("have been applied"), HasSubstr("there is no older checkpoint"),
            HasSubstr("run --on-nan find")));
  EXPECT_FALSE(std::filesystem::exists(folder.file("saved") + "/step-000001"));
  const CommandResult found = run({}, {"--on-nan", "find"});
  EXPECT_EQ(found.exit_code, 82);
  EXPECT_THAT(found.errors,
              AllOf(HasSubstr("step 1, rank 0"), HasSubstr("the update has made -inf of 'w' at [0,1]")));
  const CommandResult masked = run({"--freeze", "^w$"}, {});
  EXPECT_EQ(masked.exit_code, 0) << masked.errors;
}

// No checkpoint, no later loss, no evaluation, and still a run whose last update has spoiled the weights.
TEST(NotFiniteGradients, EndARunWithoutCheckpointsWith82) {
  const TemporaryFolder folder;
  writeSteepModel(folder.file("steep.onnx"));
  std::vector<float> x(16, 1);
  std::vector<std::byte> bytes(64);
  std::memcpy(bytes.data(), x.data(), 64);
  writeNpz(folder.file("x.npz"), {{"x", {DataType::kFloat32, {4, 4}, bytes}}});
  const auto run = [&](const Words& options, const Words& more) {
    const CommandResult planned =
        runPipeshard(together({"plan", folder.file("steep.onnx"), "--cluster", "1x1", "--optimizer",
                               "sgd:lr=0.1", "-o", folder.file("plan")},
                              options));
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    return runPipeshard(
        together({"run", folder.file("plan"), "--steps", "1", "--data", folder.file("x.npz")}, more));
  };
  const CommandResult spoiled = run({}, {});
  EXPECT_EQ(spoiled.exit_code, 82) << spoiled.errors;
  EXPECT_THAT(spoiled.output, Not(HasSubstr("--checkpoint DIR saves them")));
  EXPECT_THAT(spoiled.errors,
              AllOf(HasSubstr("rank 0: after the last step 'parameter/w' has -inf at [0,1] (4 "
                              "of the 16 values"),
                    HasSubstr("run --on-nan find")));
  const CommandResult dumped = run({"--freeze", "^v$"}, {"--dump", folder.file("dump")});
  EXPECT_EQ(dumped.exit_code, 82) << dumped.errors;
  const CommandResult masked = run({"--freeze", "^w$"}, {});
  EXPECT_EQ(masked.exit_code, 0) << masked.errors;
}

// A row of a table that no example reads.
TEST(NotFiniteGradients, OfAWeightThatReachesNoLossAreNoFault) {
  const TemporaryFolder folder;
  Graph graph;
  graph.name = "table";
  graph.opset_imports[""] = 17;
  GraphBuilder builder(graph);
  const ValueId ids = builder.addValue("ids", DataType::kInt64, {4});
  std::vector<float> numbers(16, 1);
  numbers[13] = std::numeric_limits<float>::quiet_NaN();
  const ValueId table = builder.addConstant("table", makeConstant<float>({4, 4}, numbers));
  const ValueId w = builder.addConstant("w", makeConstant<float>({4, 4}, std::vector<float>(16, 1)));
  const ValueId rows = builder.addValue("rows", DataType::kFloat32, {4, 4});
  const ValueId y = builder.addValue("y", DataType::kFloat32, {4, 4});
  const ValueId loss = builder.addValue("loss", DataType::kFloat32, {});
  builder.addNode("", "Gather", {table, ids}, {rows});
  builder.addNode("", "MatMul", {rows, w}, {y});
  builder.addNode("", "ReduceMean", {y}, {loss}, {{"keepdims", int64_t{0}}});
  graph.inputs = {ids};
  graph.outputs = {loss};
  writeModel(graph, folder.file("table.onnx"));
  const std::vector<int64_t> read = {0, 1, 2, 1};
  std::vector<std::byte> bytes(32);
  std::memcpy(bytes.data(), read.data(), 32);
  writeNpz(folder.file("ids.npz"), {{"ids", {DataType::kInt64, {4}, bytes}}});
  for (const Words& options : {Words{}, Words{"--freeze", "^table$"}}) {
    const CommandResult planned =
        runPipeshard(together({"plan", folder.file("table.onnx"), "--cluster", "1x1", "--optimizer",
                               "sgd:lr=0.1", "-o", folder.file("plan")},
                              options));
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
    const Words run = {"run", folder.file("plan"), "--steps", "2", "--data", folder.file("ids.npz")};
    const CommandResult ran = runPipeshard(run);
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    const CommandResult saved = runPipeshard(together(run, {"--checkpoint", folder.file("saved")}));
    EXPECT_EQ(saved.exit_code, 0) << saved.errors;
    std::filesystem::remove_all(folder.file("saved"));
  }
}

// Which node, row or weight was the first, on whichever rank.
TEST(NotFiniteGradients, TheFirstValueIsFoundWhereItBegins) {
  const TemporaryFolder folder;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto found = [&](float first_weight, float third) {
    std::vector<float> x(16);
    x[9] = third;
    std::vector<std::byte> bytes(64);
    std::memcpy(bytes.data(), x.data(), 64);
    writeRootModel(folder.file("root.onnx"), first_weight);
    writeNpz(folder.file("x.npz"), {{"x", {DataType::kFloat32, {4, 4}, bytes}}});
    const CommandResult planned = runPipeshard(
        {"plan", folder.file("root.onnx"), "--cluster", "1x2", "--boundary", "a", "-o", folder.file("plan")});
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    const CommandResult ran = runPipeshard(
        {"run", folder.file("plan"), "--steps", "3", "--data", folder.file("x.npz"), "--on-nan", "find"});
    EXPECT_EQ(ran.exit_code, 82) << ran.errors;
    return ran.errors;
  };
  EXPECT_THAT(found(1, 0), AllOf(HasSubstr("step 1, rank 1"), HasSubstr("has inf at [0,0]"),
                                 HasSubstr("has nan at [0,0], the first there is")));
  EXPECT_THAT(found(1, nan), AllOf(HasSubstr("step 1, rank 0"), HasSubstr("the input 'x' has nan at [2,1]")));
  EXPECT_THAT(found(nan, 0), HasSubstr("rank 0, before its first step: the weight 'v' has nan at [0,0]"));
}

// Stages update at different times: there is no moment at which all know.
TEST_F(NotANumber, SaysWhichUpdatesWereMadeUnderAnAsynchronousSchedule) {
  const std::string plan = planned({"--stages", "uniform:2", "--schedule", "pipedream", "--window", "5"});
  const CommandResult ran = run(plan, 1, {});
  EXPECT_EQ(ran.exit_code, 82);
  EXPECT_THAT(ran.errors, HasSubstr("from update 3 of 5 on: those before it have been made"));
}

TEST_F(NotANumber, IsLeftOutOnlyWhereThePlanTakesTheNorm) {
  const std::string plan = planned({"--stages", "uniform:2", "--microbatches", "2"});
  const CommandResult skipped = run(plan, 5, {"--on-nan", "skip"});
  EXPECT_EQ(skipped.exit_code, 64);
  EXPECT_THAT(skipped.errors, HasSubstr("plan with --clip-norm X, or with --clip-norm inf"));
  const CommandResult rewinding = run(plan, 5, {"--on-nan", "rewind"});
  EXPECT_EQ(rewinding.exit_code, 64);
  EXPECT_THAT(rewinding.errors, HasSubstr("needs --checkpoint DIR"));
}

}  // namespace
}  // namespace pipeshard
