// Bad input gets a clear error with its exit code, quickly, and never a crash.

#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "runtime/execute/rank_image.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

CommandResult validateFile(const std::string& path, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"validate", path, "--steps", "1"});
  return runPipeshard(more, std::chrono::seconds(20));
}

void expectFault(const CommandResult& result, int exit_code, const std::vector<std::string>& words) {
  EXPECT_EQ(result.exit_code, exit_code) << result.output << result.errors;
  EXPECT_LT(result.seconds, 10);
  for (const std::string& word : words) EXPECT_THAT(result.errors, HasSubstr(word));
}

TEST(BadInput, MissingFile) { expectFault(validateFile("no/such/model.onnx"), 66, {"no/such/model.onnx"}); }

TEST(BadInput, Folder) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "x.onnx");
  expectFault(validateFile(folder.file("x.onnx")), 66, {"x.onnx"});
}

TEST(BadInput, EmptyFile) {
  const TemporaryFolder folder;
  writeFile(folder.file("empty.onnx"), "");
  expectFault(validateFile(folder.file("empty.onnx")), 65, {"empty.onnx", "empty"});
}

TEST(BadInput, TextFile) {
  const TemporaryFolder folder;
  writeFile(folder.file("text.onnx"), "This is not a model, it is a poem.\n");
  expectFault(validateFile(folder.file("text.onnx")), 65, {"text.onnx"});
}

TEST(BadInput, TruncatedAtEveryTenthOfTheFile) {
  const TemporaryFolder folder;
  const std::string whole = readFile(std::filesystem::path(PIPESHARD_SOURCE_DIR) / "examples/mlp.onnx");
  for (int tenth = 1; tenth < 10; ++tenth) {
    writeFile(folder.file("short.onnx"), whole.substr(0, whole.size() * tenth / 10));
    expectFault(validateFile(folder.file("short.onnx")), 65, {"short.onnx"});
  }
}

TEST(BadInput, MissingExternalData) {
  const TemporaryFolder folder;
  std::filesystem::copy(std::filesystem::path(PIPESHARD_SOURCE_DIR) / "examples/mlp.onnx",
                        folder.path() / "mlp.onnx");
  expectFault(validateFile(folder.file("mlp.onnx")), 66, {"mlp.onnx.data"});
}

// A model with one weight whose location the caller chooses.
void writeModelWithLocation(const std::string& path, const std::string& location,
                            const Shape& shape = {4, 4}) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", DataType::kFloat32, {4});
  const ValueId w = builder.addValue("w", DataType::kFloat32, shape);
  const ValueId y = builder.addValue("y", DataType::kFloat32, {4});
  const ValueId loss = builder.addValue("loss", DataType::kFloat32, {});
  graph.inputs = {x};
  graph.initializers[w] =
      WeightReference{location, 0, static_cast<uint64_t>(shape[0]) * static_cast<uint64_t>(shape[1]) * 4};
  builder.addNode("", "MatMul", {x, w}, {y});
  builder.addNode("", "ReduceMean", {y}, {loss}, {{"keepdims", int64_t{0}}});
  graph.outputs = {loss};
  writeModel(graph, path);
}

TEST(BadInput, NumbersOutOfRangeAreSaidInWords) {
  expectFault(validateFile("examples/mlp.onnx", {"--timeout", "0.0001"}), 64,
              {"--timeout", "whole number from 1 to", "found 0.0001"});
  for (const char* steps : {"0", "1e3", "99999999999999999999"}) {
    const CommandResult result = runPipeshard({"validate", "examples/mlp.onnx", "--steps", steps});
    expectFault(result, 64, {"--steps", "whole number from 1 to", std::string("found ") + steps});
    EXPECT_LT(result.errors.size(), 200u);
  }
}

TEST(BadInput, FoldersThatCannotBeMadeAreNoBugs) {
  const TemporaryFolder folder;
  writeFile(folder.file("file"), "text");
  const std::string long_name(300, 'a');
  for (const std::string& path : {folder.file("file") + "/plan", std::string(), folder.file(long_name)}) {
    const CommandResult result = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "-o", path});
    EXPECT_NE(result.exit_code, 0) << path;
    EXPECT_NE(result.exit_code, 70) << path << ": " << result.errors;
    EXPECT_EQ(result.errors.find("bug"), std::string::npos) << result.errors;
  }
}

TEST(BadInput, RatesOfSimulatedDevicesHaveBounds) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan");
  ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "-o", plan}).exit_code, 0);
  for (const char* option : {"--device-gflops", "--device-gbytes", "--link-gbytes", "--link-us"}) {
    for (const char* number : {"nan", "1e300", "-1"}) {
      expectFault(runPipeshard({"simulate", plan, option, number}), 64, {option, "expected a number from"});
    }
  }
}

TEST(BadInput, MessagesNameTheFileOnce) {
  const TemporaryFolder folder;
  writeFile(folder.file("w"), std::string(64, '\0'));
  writeModelWithLocation(folder.file("static.onnx"), "w");
  const CommandResult result = validateFile(folder.file("static.onnx"), {"--dim", "batch=3"});
  expectFault(result, 78, {"static.onnx: a batch of 3 does not fit"});
  EXPECT_EQ(result.errors.find("static.onnx"), result.errors.rfind("static.onnx")) << result.errors;
}

TEST(Plan, SaysWhenDevicesAreLeftOverAndWhenWorkersCrowd) {
  const TemporaryFolder folder;
  const CommandResult plan =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x100", "-o", folder.file("mlp.plan")});
  ASSERT_EQ(plan.exit_code, 0) << plan.errors;
  EXPECT_THAT(plan.output, HasSubstr("of 100 devices are used"));
  EXPECT_THAT(
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "-o", folder.file("two.plan")}).output,
      ::testing::Not(HasSubstr("devices are used")));
  const int ranks = countRanks(folder.file("mlp.plan"));
  const bool crowded = ranks > 2 * static_cast<int>(std::thread::hardware_concurrency());
  const CommandResult run = runPipeshard({"run", folder.file("mlp.plan")});
  EXPECT_EQ(run.exit_code, 0) << run.errors;
  EXPECT_EQ(run.errors.find("workers share the") != std::string::npos, crowded) << run.errors;
}

TEST(Plan, TrainsWhatTheUserSaysAndTellsHowToDoItAgain) {
  const TemporaryFolder folder;
  const CommandResult result =
      runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x2", "--freeze", ".", "--train",
                    "^dense2", "-o", folder.file("mlp.plan"), "--json", folder.file("result.json")});
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("not trained (--freeze, or no gradient in the file): "));
  const std::string json = readFile(folder.file("result.json"));
  EXPECT_THAT(json, HasSubstr("dense2.weight"));
  EXPECT_THAT(json, ::testing::Not(HasSubstr("dense1.weight")));
  EXPECT_THAT(readFile(folder.file("mlp.plan/report.html")), HasSubstr("--train &#39;^dense2&#39;"));
  expectFault(validateFile("examples/mlp.onnx", {"--freeze", "."}), 65, {"no weight to train"});
}

// examples/mlp.onnx with its weights, in a folder of the test's own, and a plan of it.
struct PlannedCopy {
  TemporaryFolder folder;
  std::string model = folder.file("mlp.onnx");
  std::string weights = folder.file("mlp.onnx.data");
  std::string plan = folder.file("mlp.plan");
  PlannedCopy() {
    for (const char* name : {"mlp.onnx", "mlp.onnx.data"}) {
      std::filesystem::copy(std::filesystem::path(PIPESHARD_SOURCE_DIR) / "examples" / name,
                            folder.path() / name);
    }
    EXPECT_EQ(runPipeshard({"plan", "--dim", "batch=8", "--cluster", "1x2", model, "-o", plan}).exit_code, 0);
  }
};

TEST(BadInput, WeightsThatChangedSincePlanning) {
  const PlannedCopy copy;
  EXPECT_EQ(runPipeshard({"run", copy.plan}).exit_code, 0);
  std::string bytes = readFile(copy.weights);
  bytes[bytes.size() / 2] ^= 1;
  writeFile(copy.weights, bytes);
  expectFault(runPipeshard({"run", copy.plan}), 78, {copy.weights, "changed since planning; plan again"});
  expectFault(validateFile(copy.plan), 78, {copy.weights, "changed since planning"});
  bytes.pop_back();
  writeFile(copy.weights, bytes);
  expectFault(runPipeshard({"run", copy.plan}), 78, {copy.weights, "66560", "66559"});
  std::filesystem::remove(copy.weights);
  expectFault(runPipeshard({"run", copy.plan}), 66, {copy.weights, "does not exist"});
  expectFault(validateFile(copy.plan), 66, {copy.weights});
}

TEST(BadInput, ACopiedPlanAndRewrittenWeightsAreNoFault) {
  const PlannedCopy copy;
  std::filesystem::copy(copy.plan, copy.folder.file("moved.plan"), std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(copy.plan);
  const std::string bytes = readFile(copy.weights);
  std::filesystem::remove(copy.weights);
  writeFile(copy.weights, bytes);
  EXPECT_EQ(runPipeshard({"run", copy.folder.file("moved.plan")}).exit_code, 0);
}

TEST(BadInput, ExternalDataOutsideOfTheModelsFolder) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.path() / "inner");
  writeFile(folder.file("secret"), std::string(64, 'x'));
  writeModelWithLocation(folder.file("inner/model.onnx"), "../secret");
  expectFault(validateFile(folder.file("inner/model.onnx")), 65, {"model.onnx", "../secret"});
  writeModelWithLocation(folder.file("inner/model.onnx"), folder.file("secret"));
  expectFault(validateFile(folder.file("inner/model.onnx")), 65, {"model.onnx", "secret"});
}

TEST(BadInput, AShapeOfTwoToTheFortyElements) {
  const TemporaryFolder folder;
  writeFile(folder.file("w"), std::string(64, 'x'));
  writeModelWithLocation(folder.file("model.onnx"), "w", {int64_t{1} << 20, int64_t{1} << 20});
  expectFault(validateFile(folder.file("model.onnx")), 65, {"model.onnx", "w"});
}

TEST(BadInput, UnknownDimension) {
  expectFault(validateFile("examples/gpt2.onnx", {"--dim", "bach=8"}), 64, {"bach", "batch"});
}

TEST(BadInput, TheNameOfADimensionMayBeAnyText) {
  expectFault(validateFile("examples/gpt2.onnx", {"--dim", "a = b=8"}), 64, {"'a = b'", "batch"});
  expectFault(validateFile("examples/gpt2.onnx", {"--dim", "batch=0"}), 64, {"sizes start at 1"});
}

TEST(BadInput, BatchThatCannotBeCut) {
  expectFault(validateFile("examples/gpt2.onnx", {"--dim", "batch=8", "--microbatches", "9"}), 78,
              {"batch of 8", "9 microbatches", "at most 8"});
}

TEST(BadInput, MoreStagesThanDevices) {
  expectFault(validateFile("examples/mlp.onnx", {"--cluster", "1x2", "--stages", "uniform:4"}), 78,
              {"4", "2"});
}

TEST(BadInput, UnknownBoundarySuggestsNearMatches) {
  expectFault(validateFile("examples/mlp.onnx", {"--cluster", "1x2", "--boundary", "relu_l"}), 78,
              {"relu_l", "relu_1"});
}

TEST(BadInput, UnknownSchedule) {
  expectFault(validateFile("examples/mlp.onnx", {"--schedule", "1f2b"}), 64, {"1f2b", "gpipe"});
}

TEST(BadInput, UnknownOptimizer) {
  expectFault(validateFile("examples/mlp.onnx", {"--optimizer", "adan:lr=1"}), 64, {"adan", "adamw"});
}

TEST(BadInput, UnknownOption) {
  EXPECT_EQ(runPipeshard({"validate", "examples/mlp.onnx", "--nonsense"}).exit_code, 64);
}

TEST(BadInput, PlanningOptionsForAPlanDirectory) {
  const TemporaryFolder folder;
  ASSERT_EQ(runPipeshard({"plan", "--dim", "batch=8", "examples/mlp.onnx", "-o", folder.file("mlp.plan")})
                .exit_code,
            0);
  expectFault(validateFile(folder.file("mlp.plan"), {"--schedule", "gpipe"}), 64,
              {"--schedule", "plan directory"});
}

TEST(BadInput, NoSubcommand) { EXPECT_EQ(runPipeshard({}).exit_code, 64); }

TEST(BadInput, AFolderThatIsNoPlan) {
  const TemporaryFolder folder;
  expectFault(runPipeshard({"validate", folder.path().string()}), 66, {"plan.json"});
}

TEST(BadInput, DoesNotOverwriteAFolderThatIsNoPlan) {
  const TemporaryFolder folder;
  writeFile(folder.file("precious"), "data");
  expectFault(runPipeshard({"plan", "examples/mlp.onnx", "-o", folder.path().string()}), 78,
              {"no plan directory"});
  EXPECT_EQ(readFile(folder.file("precious")), "data");
}

TEST(BigModel, IsPlannedWithoutReadingItsWeights) {
  const TemporaryFolder folder;
  const int64_t rows = 35000;
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  ValueId current = builder.addValue("x", DataType::kFloat32, {2, rows});
  graph.inputs = {current};
  const uint64_t bytes = static_cast<uint64_t>(rows * rows) * 4;  // 4.9 GB
  const ValueId w = builder.addValue("w", DataType::kFloat32, {rows, rows});
  graph.initializers[w] = WeightReference{"big.data", 0, bytes};
  const ValueId bias = builder.addValue("b", DataType::kFloat32, {rows});
  graph.initializers[bias] = WeightReference{"big.data", bytes, static_cast<uint64_t>(rows) * 4};
  for (int layer = 0; layer < 2; ++layer) {
    const ValueId y = builder.addValue("y", DataType::kFloat32, {2, rows});
    if (layer == 0) {
      builder.addNode("", "MatMul", {current, w}, {y});
    } else {
      builder.addNode("", "Add", {current, bias}, {y});
    }
    current = y;
  }
  const ValueId loss = builder.addValue("loss", DataType::kFloat32, {});
  builder.addNode("", "ReduceMean", {current}, {loss}, {{"keepdims", int64_t{0}}});
  graph.outputs = {loss};
  writeModel(graph, folder.file("big.onnx"));
  std::ofstream(folder.file("big.data")).close();
  std::filesystem::resize_file(folder.file("big.data"), bytes + static_cast<uint64_t>(rows) * 4);  // sparse

  const CommandResult result =
      runPipeshard({"plan", folder.file("big.onnx"), "--cluster", "1x2", "-o", folder.file("big.plan")});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_LT(result.peak_kilobytes, 500 * 1024);
}

// An unset variable of the shell: what the option is for would silently not be done.
TEST(BadInput, EmptyValuesOfOptionsAreRefused) {
  const std::vector<std::vector<std::string>> lines = {
      {"run", "a.plan", "--data", ""},          {"run", "a.plan", "--data-command", " "},
      {"run", "a.plan", "--checkpoint", ""},    {"run", "a.plan", "--eval", ""},
      {"run", "a.plan", "--log", ""},           {"run", "a.plan", "--json", ""},
      {"run", "a.plan", "--trace", ""},         {"run", "a.plan", "--steps", ""},
      {"validate", "a.plan", "--listen", ""},   {"run", "a.plan", "--metrics", "\t"},
      {"plan", "a.onnx", "--data", ""},         {"plan", "a.onnx", "--loss", ""},
      {"plan", "a.onnx", "--stages", ""},       {"plan", "a.onnx", "--method", ""},
      {"export", "saved", "--safetensors", ""}, {"plan", "a.onnx", "--freeze", ""}};
  for (const std::vector<std::string>& line : lines) {
    const CommandResult result = runPipeshard(line, std::chrono::seconds(20));
    expectFault(result, 64, {line[2] + ": expected ", "found an empty value"});
  }
  expectFault(runPipeshard({"run", "a.plan", "--data", ""}), 64, {"--data: expected FILE|DIR|-, found"});
}

TEST(BadInput, AFolderForTemporaryFilesThatIsNotThereIsNamed) {
  const TemporaryFolder folder;
  const std::string none = folder.file("none");
  const auto set = [&] { setenv("TMPDIR", none.c_str(), 1); };
  const pid_t pid = startPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x2"},
                                   folder.path() / "out", folder.path() / "err", set);
  expectFault(finishPipeshard(pid, folder.path() / "out", folder.path() / "err", std::chrono::seconds(20)),
              78, {"'" + none + "', which TMPDIR says, cannot be used"});
}

TEST(BadInput, APathThatIsNoUtf8IsNotTheModelsFault) {
  const TemporaryFolder folder;
  const std::filesystem::path odd = folder.path() / "caf\xe9";
  std::filesystem::create_directory(odd);
  for (const char* name : {"mlp.onnx", "mlp.onnx.data"})
    std::filesystem::copy(std::filesystem::path(PIPESHARD_SOURCE_DIR) / "examples" / name, odd / name);
  expectFault(runPipeshard({"plan", (odd / "mlp.onnx").string(), "--cluster", "1x2", "-o", folder.file("p")}),
              78, {"mlp.onnx' has bytes that are not UTF-8"});
}

}  // namespace
}  // namespace pipeshard
