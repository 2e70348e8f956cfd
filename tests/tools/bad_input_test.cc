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

TEST(BadInput, WordsThatAreUnknownOrExcludeEachOther) {
  expectFault(runPipeshard({"frobnicate"}), 64, {"\"frobnicate\" is no subcommand", "--help"});
  expectFault(validateFile("examples/mlp.onnx", {"--no-patterns", "--patterns", "on"}), 64, {"excludes"});
}

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

// Rows of x [batch,4] meet in the product of all with all, as CLIP's do.
std::string writeMeeting(const TemporaryFolder& folder) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const auto value = [&](const char* name, Shape shape) {
    return builder.addValue(name, DataType::kFloat32, std::move(shape));
  };
  const ValueId x = value("x", {kUnknownSize, 4}), a = value("a", {kUnknownSize, 4}),
                t = value("t", {4, kUnknownSize}), all = value("all", {kUnknownSize, kUnknownSize}),
                loss = value("loss", {});
  for (const ValueId id : {x, a}) graph.value(id).symbols = {"batch", ""};
  graph.value(t).symbols = {"", "batch"};
  graph.value(all).symbols = {"batch", "batch"};
  std::vector<float> numbers(16);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i % 5) / 4;
  builder.addNode("", "MatMul", {x, builder.addConstant("fc.weight", makeConstant<float>({4, 4}, numbers))},
                  {a});
  builder.addNode("", "Transpose", {a}, {t}, {{"perm", std::vector<int64_t>{1, 0}}});
  builder.addNode("", "MatMul", {a, t}, {all});
  builder.addNode("", "ReduceMean", {all}, {loss}, {{"keepdims", int64_t{0}}});
  graph.inputs = {x};
  graph.outputs = {loss};
  writeModel(graph, folder.file("meeting.onnx"));
  return folder.file("meeting.onnx");
}

TEST(Plan, ABatchWhoseExamplesMeetIsTakenWhole) {
  const TemporaryFolder folder;
  const std::string model = writeMeeting(folder);
  const auto planned = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"plan", model, "-o", folder.file("plan")});
    return runPipeshard(options);
  };
  for (const std::vector<std::string>& options : std::vector<std::vector<std::string>>{
           {"--cluster", "1x2"}, {"--cluster", "1x1"}, {"--cluster", "1x1", "--microbatches", "1"}}) {
    const CommandResult result = planned(options);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("a batch of 8 was chosen (--dim batch=N sets it)"));
    EXPECT_THAT(result.output, HasSubstr("one microbatch has all 8 rows, and stages take turns: "));
    EXPECT_EQ(runPipeshard({"validate", folder.file("plan")}).exit_code, 0);
  }
  const CommandResult given = planned({"--cluster", "1x2", "--dim", "batch=6"});
  EXPECT_EQ(given.exit_code, 0) << given.errors;
  EXPECT_THAT(given.output, HasSubstr("one microbatch has all 6 rows"));
  expectFault(planned({"--cluster", "1x2", "--microbatches", "2"}), 65,
              {"Use one microbatch (--microbatches 1)"});
  expectFault(planned({"--cluster", "1x2", "--microbatches", "1", "--accumulate", "2"}), 65,
              {"--accumulate 2 makes as many microbatches of a step, or more: leave it out, or change"});
  expectFault(planned({"--cluster", "1x2", "--stages", "uniform:1"}), 65, {"take stages of one device"});
}

TEST(BadInput, AModelOfPairsSaysThatAMicrobatchHasOneRow) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const ValueId x = builder.addValue("x", DataType::kFloat32, {kUnknownSize, 4}),
                pairs = builder.addValue("pairs", DataType::kFloat32, {kUnknownSize, 8}),
                made = builder.addValue("made", DataType::kFloat32, {kUnknownSize, 1}),
                loss = builder.addValue("loss", DataType::kFloat32, {});
  graph.value(x).symbols = {"batch", ""};
  const std::vector<float> halves(8, 0.5F);
  builder.addNode("", "Reshape", {x, builder.addConstant("two", makeConstant<int64_t>({2}, {-1, 8}))},
                  {pairs});
  builder.addNode("", "MatMul", {pairs, builder.addConstant("fc.weight", makeConstant({8, 1}, halves))},
                  {made});
  builder.addNode("", "ReduceMean", {made}, {loss}, {{"keepdims", int64_t{0}}});
  graph.inputs = {x};
  graph.outputs = {loss};
  const TemporaryFolder folder;
  writeModel(graph, folder.file("pairs.onnx"));
  expectFault(validateFile(folder.file("pairs.onnx"), {"--dim", "batch=8", "--microbatches", "8"}), 65,
              {"with 1 of 8 rows (fewer --microbatches have more): "});
}

TEST(BadInput, AdviceOnMicrobatchesHelps) {
  const auto planned = [](std::vector<std::string> options) {
    const TemporaryFolder folder;
    options.insert(options.begin(),
                   {"plan", "examples/gpt2.onnx", "--cluster", "1x2", "-o", folder.file("p")});
    return runPipeshard(options);
  };
  expectFault(planned({"--schedule", "pipedream", "--accumulate", "2", "--microbatches", "1"}), 78,
              {"expected 1 (--microbatches 1, without --accumulate)"});
  for (const bool programs : {true, false}) {
    std::vector<std::string> options = {"--dim",    "batch=5",   "--microbatches", "4",
                                        "--stages", "uniform:1", "--method",       "zero2"};
    if (!programs) options.emplace_back("--no-programs");
    expectFault(planned(options), 78,
                {"), which reads '", "microbatch of 1 row(s); choose fewer microbatches (--microbatches)"});
    options[3] = "2";
    EXPECT_EQ(planned(options).exit_code, 0);
  }
}

TEST(BadInput, OptionsThatWouldDoNothingAreRefused) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("plan"), mlp = "examples/mlp.onnx";
  ASSERT_EQ(runPipeshard({"plan", mlp, "--cluster", "1x2", "-o", plan}).exit_code, 0);
  const auto refused = [](const std::vector<std::string>& words, const std::string& text) {
    expectFault(runPipeshard(words), 64, {text});
  };
  for (const auto& [options, text] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--transport", "staged"}, "--transport goes with --device cuda"},
           {{"--share-devices"}, "--share-devices goes with --device cuda"},
           {{"--insecure"}, "--insecure goes with --listen"},
           {{"--data-plane", "private"}, "--data-plane goes with --listen"},
           {{"--patience", "9"}, "--patience goes with --listen"},
           {{"--data-timeout", "9"}, "--data-timeout goes with --data-command"},
           {{"--drop-last"}, "--drop-last goes with --data"}}) {
    for (const char* command : {"run", "validate"}) {
      std::vector<std::string> words = {command, plan};
      words.insert(words.end(), options.begin(), options.end());
      refused(words, text);
    }
  }
  refused({"run", plan, "--trace-steps", "3"}, "--trace-steps goes with --trace FILE");
  refused({"run", plan, "--outputs", folder.file("o.npz"), "--data", "x.npz", "--shuffle"}, "--shuffle");
  const auto unplanned = [&](std::vector<std::string> options, const std::string& text) {
    options.insert(options.begin(), {"plan", mlp, "--dim", "batch=5", "-o", folder.file("other")});
    refused(options, text);
  };
  const std::string data = PIPESHARD_SOURCE_DIR "/tests/oracle/golden/mlp.npz";  // 8 rows
  unplanned({"--drop-last"}, "--drop-last goes with --data");
  unplanned({"--last-batch", "3", "--drop-last"}, "give one of the two");
  unplanned({"--last-batch", "2", "--data", data}, "leaves 3 examples; leave it out");
  for (const auto& [option, value] : {std::pair("--optimizer", "adam"),
                                      {"--recompute", "always"},
                                      {"--bucket", "4MB"},
                                      {"--accumulate", "2"}})
    unplanned({"--schedule", "forward-only", option, value},
              "nothing is trained with --schedule forward-only");
  refused({"export", folder.file("saved"), "--training-info", "--safetensors", folder.file("t")},
          "--training-info is of the model that -o writes");
  refused({"profile", "--dim", "batch=4", "-o", folder.file("p")}, "--dim goes with --model MODEL");
  refused({"profile", "--model", plan, "--schedule", "gpipe", "-o", folder.file("p")},
          "--schedule goes with a MODEL to plan");
  refused({"inspect", mlp, "--group", "nothing:lr=1"}, "is found in the name of no trained parameter");
  refused({"checkpoint", folder.file("c"), "--delete", "3", "--verify"}, "--delete --verify: ");
  refused({"checkpoint", folder.file("c"), "--compare", folder.file("d"), "--delete", "3"},
          "--compare --delete: ");
  refused({"checkpoint", folder.file("c"), "--compare", folder.file("d"), "--json", folder.file("j")},
          "--compare --json: ");
}

}  // namespace
}  // namespace pipeshard
