// The main job, end to end: the command, real exports, worker processes.

#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/convert.h"
#include "onnx_import/format/writer.h"
#include "tests/ir/program/unrolled_json.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

struct Configuration {
  std::string name;
  std::string model;
  std::string schedule = "1f1b";
  int workers = 4;
  int microbatches = 8;
  std::string optimizer = "adamw:lr=1e-3";
  std::string precision = "float32";
  std::vector<std::string> more = {};
};

void PrintTo(const Configuration& configuration, std::ostream* stream) { *stream << configuration.name; }

std::vector<std::string> commandLine(const Configuration& c, const std::string& json) {
  std::vector<std::string> line = {"validate",       "examples/" + c.model + ".onnx",
                                   "--cluster",      "1x" + std::to_string(c.workers),
                                   "--schedule",     c.schedule,
                                   "--microbatches", std::to_string(c.microbatches),
                                   "--optimizer",    c.optimizer,
                                   "--precision",    c.precision,
                                   "--steps",        "3",
                                   "--json",         json};
  if (std::find(c.more.begin(), c.more.end(), "--stages") == c.more.end()) {
    line.insert(line.end(), {"--stages", "uniform:" + std::to_string(c.workers)});
  }
  line.insert(line.end(), c.more.begin(), c.more.end());
  return line;
}

class Validate : public ::testing::TestWithParam<Configuration> {};

TEST_P(Validate, EqualsOneDevice) {
  const TemporaryFolder folder;
  const CommandResult result = runPipeshard(commandLine(GetParam(), folder.file("result.json")));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS"));

  const auto json = nlohmann::json::parse(readFile(folder.file("result.json")));
  EXPECT_TRUE(json.at("passed").get<bool>());
  EXPECT_EQ(json.at("steps").size(), 3u);
  const double bound = GetParam().precision == "float64"    ? 1e-11
                       : GetParam().precision == "bfloat16" ? 1e-1
                                                            : 1e-5;
  const double update_bound = GetParam().precision == "float64" ? 1e-12 : 1e-6;
  std::map<std::string, int> counts;
  for (const auto& tensor : json.at("tensors")) {
    const std::string kind = tensor.at("kind");
    ++counts[kind];
    const bool against_device = kind == "loss" || kind == "gradient" ||
                                (kind == "parameter" && GetParam().optimizer.starts_with("sgd"));
    const bool of_update = kind == "updated parameter" || kind == "updated state";
    const double allowed = against_device ? bound
                           : of_update    ? update_bound
                                          : std::numeric_limits<double>::infinity();
    EXPECT_LE(tensor.at("error").get<double>(), allowed) << tensor.dump();
  }
  const std::map<std::string, int> parameter_counts = {
      {"mlp", 8},    {"gpt2", 52},   {"gpt2_torchscript", 52},
      {"llama", 39}, {"resnet", 50}, {"resnet_torchscript", 50}};
  const int parameters = parameter_counts.at(GetParam().model);
  EXPECT_EQ(counts["gradient"], 3 * parameters);
  EXPECT_EQ(counts["parameter"], 3 * parameters);
  EXPECT_EQ(counts["loss"], 3);
  EXPECT_EQ(counts["updated parameter"], 3 * parameters);
  if (!GetParam().optimizer.starts_with("sgd")) {
    EXPECT_EQ(counts["updated state"], 6 * parameters);
  }
}

// Schedules and optimizers, workers and microbatches of stages of one device.
void addPipelines(std::vector<Configuration>& all) {
  for (const char* model : {"mlp", "gpt2"}) {
    const std::string m = model;
    for (const char* schedule : {"sequential", "gpipe", "1f1b"}) {
      const std::string s = schedule;
      all.push_back({.name = m + "_" + s + "_adamw", .model = m, .schedule = s});
      all.push_back({.name = m + "_" + s + "_sgd_float64",
                     .model = m,
                     .schedule = s,
                     .optimizer = "sgd:lr=0.1",
                     .precision = "float64"});
    }
    all.push_back({.name = m + "_sgd", .model = m, .optimizer = "sgd:lr=0.1"});
    all.push_back({.name = m + "_momentum", .model = m, .optimizer = "sgd:lr=0.1,momentum=0.9"});
    all.push_back({.name = m + "_adam", .model = m, .optimizer = "adam:lr=1e-3"});
    all.push_back(
        {.name = m + "_adam_float64", .model = m, .optimizer = "adam:lr=1e-3", .precision = "float64"});
    all.push_back({.name = m + "_three_workers", .model = m, .workers = 3});
    all.push_back({.name = m + "_one_worker", .model = m, .workers = 1});
    all.push_back({.name = m + "_one_microbatch", .model = m, .microbatches = 1});
    all.push_back({.name = m + "_fewer_microbatches_than_stages", .model = m, .microbatches = 2});
    all.push_back(
        {.name = m + "_gpipe_fewer_microbatches", .model = m, .schedule = "gpipe", .microbatches = 2});
  }
}

void addMoreModels(std::vector<Configuration>& all) {
  for (const char* model : {"llama", "gpt2_torchscript"}) {
    const std::string m = model;
    for (const char* schedule : {"sequential", "gpipe", "1f1b"})
      all.push_back({.name = m + "_" + schedule, .model = m, .schedule = schedule});
    all.push_back(
        {.name = m + "_sgd_float64", .model = m, .optimizer = "sgd:lr=0.1", .precision = "float64"});
  }
  for (const std::string m : {"mlp", "gpt2", "llama"}) {
    all.push_back({.name = m + "_8_in_3", .model = m, .microbatches = 3});
    all.push_back({.name = m + "_8_in_5_float64",
                   .model = m,
                   .microbatches = 5,
                   .optimizer = "sgd:lr=0.1",
                   .precision = "float64"});
  }
}

// All four models and both exporters on two stages of two data-parallel devices and on stages of one and
// three.
void addLayouts(std::vector<Configuration>& all) {
  for (const std::string m : {"mlp", "gpt2", "llama", "resnet", "gpt2_torchscript", "resnet_torchscript"}) {
    // and equal widths in float32, where a Relu near zero could flip
    const bool unequal_in_float64 = m.starts_with("resnet");
    const auto add = [&](const std::string& layout, const std::string& schedule, int microbatches,
                         std::vector<std::string> more) {
      all.push_back({.name = m + "_" + layout + "_" + schedule,
                     .model = m,
                     .schedule = schedule,
                     .microbatches = microbatches,
                     .optimizer = "sgd:lr=0.1,momentum=0.9",
                     .precision = unequal_in_float64 && !layout.starts_with("two") ? "float64" : "float32",
                     .more = std::move(more)});
    };
    for (const std::string schedule : {"sequential", "gpipe", "1f1b"})
      add("two_by_two", schedule, 4, {"--stages", "uniform:2"});
    add("two_by_two_8_in_3", "1f1b", 3, {"--stages", "uniform:2"});
    add("one_and_three", "1f1b", 2, {"--stages", "per-device", "--stage-devices", "1,3"});
    add("three_and_one", "gpipe", 2, {"--stages", "per-device", "--stage-devices", "3,1"});
  }
}

// Every method, on one stage of four devices; resnet in float64, where a Relu near zero does not flip.
void addMethods(std::vector<Configuration>& all) {
  for (const std::string m : {"mlp", "gpt2", "llama", "resnet", "gpt2_torchscript", "resnet_torchscript"}) {
    for (const std::string method : {"auto", "data-parallel", "zero2", "zero3", "tensor-parallel",
                                     "megatron:2,2", "megatron-zero2:2,2", "megatron:1,4"}) {
      std::string name = m + "_" + method;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return c == '-' || c == ':' || c == ','; }, '_');
      all.push_back({.name = name,
                     .model = m,
                     .microbatches = 2,
                     .optimizer = "sgd:lr=0.1,momentum=0.9",
                     .precision = m.starts_with("resnet") ? "float64" : "float32",
                     .more = {"--stages", "uniform:1", "--method", method}});
    }
  }
  all.push_back({.name = "gpt2_data_parallel_adamw",
                 .model = "gpt2",
                 .microbatches = 2,
                 .more = {"--stages", "uniform:1"}});
}

// Devices that share operators round their partial sums apart.
void addSharedInBfloat16(std::vector<Configuration>& all) {
  for (const std::string model_and_method : {"mlp_zero3", "gpt2_megatron:2,2", "llama_tensor-parallel"}) {
    const size_t end = model_and_method.find('_');
    const std::string m = model_and_method.substr(0, end);
    all.push_back({.name = m + "_shared_bfloat16",
                   .model = m,
                   .microbatches = 2,
                   .precision = "bfloat16",
                   .more = {"--stages", "uniform:1", "--method", model_and_method.substr(end + 1)}});
  }
}

std::vector<Configuration> configurations() {
  std::vector<Configuration> all;
  addPipelines(all);
  addMoreModels(all);
  addLayouts(all);
  addMethods(all);
  addSharedInBfloat16(all);
  all.push_back({.name = "resnet_two_by_two_bfloat16",
                 .model = "resnet",
                 .microbatches = 4,
                 .optimizer = "sgd:lr=0.1",
                 .precision = "bfloat16",
                 .more = {"--stages", "uniform:2"}});
  all.push_back({.name = "gpt2_batch_32", .model = "gpt2", .more = {"--dim", "batch=32"}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(MainJob, Validate, ::testing::ValuesIn(configurations()),
                         [](const auto& info) { return info.param.name; });

// sum((x w + position)^2) / size, the size folded into a constant when the model is prepared. Without an
// exporter's marks.
std::string writeMeanOfSquares(const TemporaryFolder& folder, DataType floats = DataType::kFloat32) {
  Graph graph;
  graph.opset_imports = {{"", 18}};
  GraphBuilder builder(graph);
  const auto value = [&](const char* name, Shape shape, std::optional<DataType> type = {}) {
    return builder.addValue(name, type.value_or(floats), std::move(shape));
  };
  const auto weight = [&](const char* name, Shape shape) {
    std::vector<float> elements(elementCount(shape));
    for (size_t i = 0; i < elements.size(); ++i) elements[i] = 0.1f * static_cast<float>(i % 7) - 0.2f;
    Constant content{floats, shape, std::vector<std::byte>(byteCount(floats, shape))};
    convertElements(DataType::kFloat32, elements.data(), floats, content.bytes.data(), elements.size());
    return builder.addConstant(name, std::move(content));
  };
  const ValueId x = value("x", {kUnknownSize, 3, 4});
  graph.value(x).symbols = {"batch", "", ""};
  const ValueId product = value("product", {kUnknownSize, 3, 5});
  const ValueId shifted = value("shifted", {kUnknownSize, 3, 5});
  const ValueId squares = value("squares", {kUnknownSize, 3, 5});
  const ValueId sum = value("sum", {}), size = value("size", {}, DataType::kInt64),
                divisor = value("divisor", {}), loss = value("loss", {});
  builder.addNode("", "MatMul", {x, weight("dense.weight", {4, 5})}, {product});
  builder.addNode("", "Add", {product, weight("position.weight", {1, 3, 5})}, {shifted});
  builder.addNode("", "Mul", {shifted, shifted}, {squares});
  builder.addNode("", "ReduceSum", {squares}, {sum}, {{"keepdims", int64_t{0}}});
  builder.addNode("", "Size", {squares}, {size});
  builder.addNode("", "Cast", {size}, {divisor}, {{"to", static_cast<int64_t>(floats)}});
  builder.addNode("", "Div", {sum, divisor}, {loss});
  graph.inputs = {x};
  graph.outputs = {loss};
  writeModel(graph, folder.file("mean.onnx"));
  return folder.file("mean.onnx");
}

TEST(ValidateCommand, InBfloat16StagesChangeNoBit) {
  const TemporaryFolder folder;
  const CommandResult result =
      runPipeshard({"validate", "examples/gpt2.onnx", "--cluster", "1x4", "--precision", "bfloat16",
                    "--optimizer", "sgd:lr=0.1", "--json", folder.file("result.json")});
  ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("note: bfloat16: 109 operators compute in it and 2 in float32"));
  const auto said = nlohmann::json::parse(readFile(folder.file("result.json")));
  for (const auto& tensor : said.at("tensors"))
    EXPECT_EQ(tensor.at("error").get<double>(), 0) << tensor.dump();
}

// By inspect, and in a plan that replays.
TEST(ValidateCommand, OperatorsAreKeptInFloat32ByName) {
  const TemporaryFolder folder;
  const auto typesOf = [&](std::vector<std::string> more) {
    std::vector<std::string> line = {"inspect", "examples/gpt2.onnx",         "--precision", "bfloat16",
                                     "--json",  folder.file("inspected.json")};
    line.insert(line.end(), more.begin(), more.end());
    const CommandResult result = runPipeshard(line);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("on activations"));
    const auto json = nlohmann::json::parse(readFile(folder.file("inspected.json"))).at("mixed_precision");
    std::map<std::string, std::pair<int, int>> types;  // narrow, float32
    for (const auto& entry : json.at("operators"))
      types[entry.at("operator")] = {entry.at("narrow"), entry.at("float32")};
    return types;
  };
  const auto usual = typesOf({});
  EXPECT_EQ(usual.at("pipeshard::Gelu"), std::pair(4, 0));
  EXPECT_EQ(usual.at("SoftmaxCrossEntropyLoss"), std::pair(0, 1));
  const auto kept = typesOf({"--keep-float32", "::Gelu$"});
  EXPECT_EQ(kept.at("pipeshard::Gelu"), std::pair(0, 4));
  EXPECT_EQ(kept.at("MatMul"), usual.at("MatMul"));

  const std::string plan = folder.file("kept.plan");
  ASSERT_EQ(runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x2", "--precision", "bfloat16",
                          "--keep-float32", "::Gelu$", "-o", plan})
                .exit_code,
            0);
  EXPECT_THAT(readFile(plan + "/plan.json"), HasSubstr("keep_float32"));
  const CommandResult validated = runPipeshard({"validate", plan});
  EXPECT_EQ(validated.exit_code, 0) << validated.output << validated.errors;
  EXPECT_THAT(validated.output, HasSubstr("4 of them by --keep-float32"));

  const CommandResult refused = runPipeshard({"inspect", "examples/gpt2.onnx", "--keep-float32", "Gelu"});
  EXPECT_EQ(refused.exit_code, 64);
  EXPECT_THAT(refused.errors, HasSubstr("--keep-float32 goes with --precision bfloat16"));
}

TEST(ValidateCommand, FilesOfHalfPrecisionAreTrainedInFloat32) {
  const TemporaryFolder folder;
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const char* precision : {"float32", "bfloat16"}) {
      const CommandResult result =
          runPipeshard({"validate", writeMeanOfSquares(folder, type), "--cluster", "1x2", "--dim", "batch=8",
                        "--precision", precision, "--optimizer", "adam:lr=0.01", "--steps", "2"});
      ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
      EXPECT_THAT(result.output, HasSubstr("trains 35 of 35 parameters"));
      EXPECT_THAT(result.output, HasSubstr("weights of the file are half precision"));
    }
  }
}

TEST(ValidateCommand, AFoldedBatchSizeIsNoParameterAndTheSameForEveryCut) {
  const TemporaryFolder folder;
  const std::string model = writeMeanOfSquares(folder);
  std::vector<std::string> losses;
  for (const std::vector<std::string>& cut :
       std::vector<std::vector<std::string>>{{"--cluster", "1x1", "--microbatches", "1"},
                                             {"--cluster", "1x1", "--microbatches", "3"},
                                             {"--cluster", "1x2", "--microbatches", "1"},
                                             {"--cluster", "1x3", "--microbatches", "2"},
                                             {"--cluster", "1x4", "--microbatches", "2"}}) {
    std::vector<std::string> line = {
        "validate", model,     "--dim", "batch=8",     "--stages", "uniform:1", "--precision",
        "float64",  "--steps", "2",     "--optimizer", "sgd:lr=1", "--json",    folder.file("result.json")};
    line.insert(line.end(), cut.begin(), cut.end());
    const CommandResult result = runPipeshard(line);
    ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
    const auto json = nlohmann::json::parse(readFile(folder.file("result.json")));
    losses.push_back(fmt::format("{:.10g}", json.at("steps").at(1).at("loss").get<double>()));
    EXPECT_EQ(losses.back(), losses.front());
  }
}

TEST(ValidateCommand, ReplaysAPlanDirectory) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("gpt2.plan");
  const CommandResult planned = runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x4", "--stages",
                                              "uniform:4", "--microbatches", "4", "-o", plan});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandResult result = runPipeshard({"validate", plan, "--steps", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS"));
}

// A kind's document, with lists in full.
nlohmann::ordered_json unrolled(const std::string& kind) {
  return nlohmann::ordered_json::parse(UnrolledJson::of(nlohmann::ordered_json::parse(kind)));
}

TEST(ValidateCommand, FindsAProgramThatComputesSomethingElse) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("mlp.plan");
  ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--microbatches", "4",
                          "--optimizer", "sgd:lr=0.1", "-o", plan})
                .exit_code,
            0);
  // Every other accumulation of a gradient on the last rank overwrites instead of adding.
  const std::string file = plan + "/kinds/0001.json";
  auto program = unrolled(readFile(file));
  int changed = 0;
  for (auto& instruction : program.at("instructions")) {
    if (instruction.at("kind") == "accumulate" && instruction.value("overwrite", false) == false &&
        changed++ % 2 == 0)
      instruction["overwrite"] = true;
  }
  ASSERT_GT(changed, 0);
  writeFile(file, program.dump(1));
  const CommandResult result = runPipeshard({"validate", plan, "--steps", "1"});
  EXPECT_EQ(result.exit_code, 1) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("FAIL"));
  EXPECT_THAT(result.output, HasSubstr("--precision float64 tells whether the cut is right"));
}

// A Relu near zero makes 4.6e-3 of a rounding where sums are made by AVX-512, and nothing where they are not:
// the cut is right, and the whole plan in float64 shows it.
TEST(ValidateCommand, TellsRoundingFromAWrongCut) {
  const TemporaryFolder folder;
  const std::vector<std::string> line = {"validate",  "examples/resnet_torchscript.onnx",
                                         "--cluster", "1x2",
                                         "--stages",  "auto",
                                         "--layers",  "2",
                                         "--steps",   "1"};
  std::vector<std::string> kept = line, bounded = line;
  kept.insert(kept.end(), {"--json", folder.file("result.json"), "-o", folder.file("resnet.plan")});
  const CommandResult result = runPipeshard(kept);
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  const auto json = nlohmann::json::parse(readFile(folder.file("result.json")));
  EXPECT_TRUE(json.at("passed"));
  EXPECT_EQ(json.contains("float64"), result.output.find("DIFFERS") != std::string::npos);
  if (json.contains("float64")) {
    EXPECT_THAT(result.output, HasSubstr("equals one device, but for float32's rounding"));
    const std::string last = result.output.substr(result.output.rfind('\n', result.output.size() - 2) + 1);
    EXPECT_THAT(last, ::testing::StartsWith("PASS: ")) << result.output;
    EXPECT_LT(json.at("float64").at("error"), 1e-11);
    EXPECT_THAT(readFile(folder.file("resnet.plan") + "/report.html"),
                HasSubstr("The same plan in float64: 183 tensors compared, equal to one device"));
  }
  // Who gives a bound has decided.
  bounded.insert(bounded.end(), {"--bound", "1e-12"});
  const CommandResult by_bound = runPipeshard(bounded);
  EXPECT_EQ(by_bound.exit_code, 1) << by_bound.output;
  EXPECT_THAT(by_bound.output, HasSubstr("--precision float64 tells whether the cut is right"));
}

// Tensor parallelism rounds products apart. In bfloat16 a batch normalisation behind them makes a third of a
// gradient of it, as much as one device itself is from float64.
TEST(ValidateCommand, TellsTheRoundingOfNarrowTypesFromAWrongCut) {
  for (const std::string precision : {"bfloat16", "float16"}) {
    const TemporaryFolder folder;
    const CommandResult result =
        runPipeshard({"validate", "examples/resnet.onnx", "--cluster", "1x4", "--method", "tensor-parallel",
                      "--precision", precision, "--steps", "1", "--json", folder.file("result.json")});
    EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
    const auto json = nlohmann::json::parse(readFile(folder.file("result.json")));
    EXPECT_TRUE(json.at("passed"));
    EXPECT_EQ(json.contains("float64"), result.output.find("DIFFERS") != std::string::npos);
    EXPECT_TRUE(json.contains("float64") || precision == "float16") << "0.33 of 0.1 are far beyond it";
    if (!json.contains("float64")) continue;
    EXPECT_THAT(result.output, HasSubstr("equals one device, but for " + precision + "'s rounding"));
    EXPECT_LT(json.at("float64").at("error"), 1e-11);
    const double error = json.at("float64").at("own_rounding").at("error"),
                 one_device = json.at("float64").at("own_rounding").at("one_device");
    EXPECT_GT(one_device, error / 3);
    EXPECT_LT(one_device, 0.7) << "a gradient that is not divided by its scale would be 1 away";
  }
}

// Programs that were changed by little are not made anew, and so found right.
TEST(ValidateCommand, DoesNotTakeAChangedProgramForRounding) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("mlp.plan");
  ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--dim", "batch=512",
                          "--microbatches", "256", "--optimizer", "sgd:lr=0.1", "-o", plan})
                .exit_code,
            0);
  const std::string file = plan + "/kinds/0001.json";
  auto program = unrolled(readFile(file));
  for (auto& instruction : program.at("instructions")) {  // one of 256 microbatches is lost, of one gradient
    if (instruction.at("kind") != "accumulate" || instruction.value("overwrite", false)) continue;
    instruction["overwrite"] = true;
    break;
  }
  writeFile(file, program.dump(1));
  const CommandResult result = runPipeshard({"validate", plan, "--steps", "1"});
  EXPECT_EQ(result.exit_code, 1) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("FAIL"));
  EXPECT_THAT(result.output, HasSubstr("are not those that its plan.json makes"));
}

// Changes a program of a plan directory with `edit`, and validates.
template <typename Edit>
CommandResult validateEdited(const std::string& optimizer, const std::string& program_file, Edit&& edit) {
  const TemporaryFolder folder;
  const std::string plan = folder.file("mlp.plan");
  EXPECT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "--microbatches", "4",
                          "--optimizer", optimizer, "-o", plan})
                .exit_code,
            0);
  auto program = unrolled(readFile(plan + "/" + program_file));
  edit(program);
  writeFile(plan + "/" + program_file, program.dump(1));
  return runPipeshard({"validate", plan, "--steps", "2"});
}

TEST(ValidateCommand, FindsAnUpdateThatIsSkippedAtATinyLearningRate) {
  for (const char* optimizer : {"sgd:lr=1e-6", "adam:lr=1e-7", "adamw:lr=1e-6"}) {
    const CommandResult result =
        validateEdited(optimizer, "kinds/0001.json", [](nlohmann::ordered_json& program) {
          nlohmann::ordered_json kept = nlohmann::ordered_json::array();
          for (auto& instruction : program.at("instructions")) {
            if (instruction.at("kind") != "update") kept.push_back(instruction);
          }
          EXPECT_LT(kept.size(), program.at("instructions").size());
          program.at("instructions") = kept;
        });
    EXPECT_EQ(result.exit_code, 1) << optimizer << result.output << result.errors;
  }
}

TEST(ValidateCommand, RefusesToCompareWithLessThanEverything) {
  const CommandResult result =
      validateEdited("adam:lr=1e-3", "reference/kinds/0000.json", [](nlohmann::ordered_json& program) {
        nlohmann::ordered_json kept = nlohmann::ordered_json::array();
        for (auto& result : program.at("results")) {
          if (result.at("kind") != "parameter") kept.push_back(result);
        }
        EXPECT_LT(kept.size(), program.at("results").size());
        program.at("results") = kept;
      });
  EXPECT_EQ(result.exit_code, 70) << result.output << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("plan again"));
}

TEST(ValidateCommand, CutsAtManualBoundaries) {
  const CommandResult result = runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x2",
                                             "--boundary", "relu_1", "--microbatches", "4", "--steps", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
}

TEST(ValidateCommand, TakesCrossEntropyAndMeanSquaredErrorFromTheCommandLine) {
  const CommandResult mse = runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x2", "--loss",
                                          "mse:relu_3,target", "--microbatches", "4", "--steps", "1"});
  EXPECT_EQ(mse.exit_code, 0) << mse.output << mse.errors;
  const CommandResult entropy =
      runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x2", "--loss",
                    "cross-entropy:relu_3,classes", "--microbatches", "4", "--steps", "1"});
  EXPECT_EQ(entropy.exit_code, 0) << entropy.output << entropy.errors;
}

}  // namespace
}  // namespace pipeshard
