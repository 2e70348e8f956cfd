// `--stages auto` from a model to tensors that equal one device.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <regex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/base/error.h"
#include "ir/graph/graph.h"
#include "onnx_import/format/writer.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

nlohmann::json planOf(const TemporaryFolder& folder, const std::string& name = "plan") {
  return nlohmann::json::parse(readFile(folder.file(name + "/plan.json")));
}

struct Example {
  std::string model;
  std::string cluster;
};

class SearchCommand : public ::testing::TestWithParam<Example> {};

TEST_P(SearchCommand, PlansThatAreFoundEqualOneDevice) {
  const TemporaryFolder folder;
  // a Relu near zero may flip
  const std::string precision = GetParam().model == "resnet" ? "float64" : "float32";
  const CommandResult validated =
      runPipeshard({"validate", "examples/" + GetParam().model + ".onnx", "--cluster", GetParam().cluster,
                    "--stages", "auto", "--optimizer", "sgd:lr=0.1,momentum=0.9", "--precision", precision,
                    "-o", folder.file("plan")});
  EXPECT_EQ(validated.exit_code, 0) << validated.errors << validated.output;
  const nlohmann::json plan = planOf(folder);
  EXPECT_TRUE(plan.at("search").at("complete"));
  const nlohmann::json& best = plan.at("alternatives").at(plan.at("search").at("chosen").get<size_t>());
  EXPECT_EQ(best.at("microbatches"), plan.at("microbatches"));
  ASSERT_EQ(best.at("stages").size(), plan.at("stages").size());
  for (size_t s = 0; s < best.at("stages").size(); ++s) {
    EXPECT_EQ(best["stages"][s].at("layers").at(0), plan["stages"][s].at("first_layer"));
    EXPECT_EQ(best["stages"][s].at("device"), plan["stages"][s].at("devices").at(0));
  }
}

INSTANTIATE_TEST_SUITE_P(Examples, SearchCommand,
                         ::testing::Values(Example{"mlp", "1x4"}, Example{"gpt2", "1x4"},
                                           Example{"llama", "1x4"}, Example{"resnet", "1x4"},
                                           Example{"mlp", "2x2"}, Example{"gpt2", "2x2"},
                                           Example{"llama", "2x2"}, Example{"resnet", "2x2"}),
                         [](const auto& info) { return info.param.model + "_on_" + info.param.cluster; });

// Rows go in pairs: eight microbatches of one row cannot be, which the search looks at first.
TEST(SearchCommandLimits, NumbersOfMicrobatchesThatTheModelDoesNotTakeAreLeftOut) {
  const TemporaryFolder folder;
  Graph graph;
  GraphBuilder builder(graph);
  graph.ir_version = 10;
  graph.opset_imports[""] = 18;
  const auto value = [&](const char* name, Shape shape) {
    return builder.addValue(name, DataType::kFloat32, std::move(shape));
  };
  const ValueId x = value("x", {kUnknownSize, 4}), h = value("h", {kUnknownSize, 4}),
                pairs = value("pairs", {}), loss = value("loss", {});
  graph.value(x).symbols = graph.value(h).symbols = {"batch", ""};
  graph.value(pairs).shape.reset();
  const ValueId w = builder.addConstant("w.weight", makeConstant<float>({4, 4}, std::vector<float>(16, 0.5)));
  const ValueId sizes = builder.addConstant("sizes", makeConstant<int64_t>({3}, {-1, 2, 4}));
  builder.addNode("", "MatMul", {x, w}, {h});
  builder.addNode("", "Reshape", {h, sizes}, {pairs});
  builder.addNode("", "ReduceMean", {pairs}, {loss}, {{"keepdims", int64_t{0}}});
  graph.inputs = {x};
  graph.outputs = {loss};
  writeModel(graph, folder.file("pairs.onnx"));
  const CommandResult planned = runPipeshard({"plan", folder.file("pairs.onnx"), "--cluster", "1x2", "--dim",
                                              "batch=8", "--stages", "auto", "-o", folder.file("plan")});
  EXPECT_EQ(planned.exit_code, 0) << planned.errors << planned.output;
  EXPECT_LT(planOf(folder).at("microbatches"), 8);
}

// Three blocks of equal layers for four slow devices: half blocks would leave one stage twice the work of
// others.
TEST(SearchCommandLayers, AreCutFinerWhereStagesAreUneven) {
  const TemporaryFolder folder;
  writeFile(folder.file("slow.json"), R"({"version": 1, "name": "slow", "kinds": {"k": {
    "memory_bandwidth": {"gbytes_per_s": 1.0, "latency_ns": 500},
    "rates": [{"class": "contraction", "type": "float32", "flops": {"gflops": 1.0, "latency_ns": 500}}]}},
    "nodes": [{"count": 4, "kind": "k", "devices": 1, "inside": {"latency_ns": 1000, "gbytes_per_s": 0.1},
               "nic": {"latency_ns": 3000, "gbytes_per_s": 0.02}, "nics": 1}]})");
  const auto plan = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "plan",  "examples/gpt2.onnx", "--cluster", folder.file("slow.json"),
        "--dim", "batch=16",           "--stages",  "auto",
        "-o",    folder.file(name)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult planned = runPipeshard(arguments);
    EXPECT_EQ(planned.exit_code, 0) << planned.errors;
    return std::pair(planOf(folder, name), planned.output);
  };
  const nlohmann::json coarse = plan("coarse", {"--layers", "9"}).first;
  const auto [found, told] = plan("found", {});
  EXPECT_THAT(told, HasSubstr("stages of 9 layers were uneven: with 16 of them a step is predicted"));
  EXPECT_EQ(found.at("layers").size(), 16U);
  const auto step = [](const nlohmann::json& of) {
    return of.at("alternatives").at(0).at("step_ns").get<int64_t>();
  };
  EXPECT_LT(step(found), 0.97 * step(coarse));
  const auto& reasons = found.at("reasons");
  EXPECT_TRUE(std::ranges::any_of(reasons, [&](const nlohmann::json& reason) {
    return reason.at("about") == "layers" && reason.at("chosen") == "16" && reason.at("instead") == "9" &&
           reason.at("step_ns") > step(found);
  })) << reasons;
}

// Of Alpa's tutorial: two layers on one node of eight devices, sixteen microbatches.
TEST(SearchCommandTables, ShowStagesWithLayersSubmeshesAndMeshesAndWhatOthersWouldCost) {
  const TemporaryFolder folder;
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "p3.16xlarge:1", "--dim", "batch=64",
                    "--layers", "2", "--microbatches", "16", "--stages", "auto", "-o", folder.file("plan")});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  for (const char* part : {"chosen by a search", "logical mesh", "the best plans found", "what stages cost"})
    EXPECT_THAT(planned.output, HasSubstr(part));
  const nlohmann::json plan = planOf(folder);
  EXPECT_EQ(plan.at("layers").size(), 2u);
  EXPECT_EQ(plan.at("stage_costs").size(), 3u * 8u);  // layers 0, 0..1, 1 on one to eight devices
  const CommandResult explained = runPipeshard({"explain", folder.file("plan")});
  ASSERT_EQ(explained.exit_code, 0) << explained.errors;
  EXPECT_THAT(explained.output, HasSubstr("what other decisions would have cost"));
  EXPECT_THAT(explained.output, HasSubstr("% of its 15.7 TFLOP/s for float32 products"));
}

TEST(SearchCommandTables, AreByteIdenticalFromAnyFolder) {
  const TemporaryFolder folder;
  std::vector<std::string> plans;
  for (const std::string name : {"a", "deeper/b"}) {
    std::filesystem::create_directories(std::filesystem::path(folder.file(name)).parent_path());
    const CommandResult planned = runPipeshard(
        {"plan", "examples/gpt2.onnx", "--cluster", "2x2", "--stages", "auto", "-o", folder.file(name)});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
    plans.push_back(readFile(folder.file(name + "/plan.json")));
  }
  EXPECT_EQ(plans[0], plans[1]);
}

enum class Met { kNoPlan, kSearch, kEnd };

// What Ctrl-C meets so long after the start: it comes before there is any plan, in the middle of the search,
// or when that is over, and its plan was written or just being written.
Met interruptPlanning(const TemporaryFolder& folder, std::chrono::microseconds delay) {
  std::filesystem::remove_all(folder.file("plan"));
  const CommandProcess planning(folder.path(), "planning",
                                {"plan", "examples/gpt2.onnx", "--cluster", "1x8", "--dim", "batch=64",
                                 "--stages", "auto", "-o", folder.file("plan")});
  std::this_thread::sleep_for(delay);
  kill(planning.pid(), SIGINT);
  const CommandResult planned = planning.finish();
  const bool written = std::filesystem::exists(folder.file("plan"));
  EXPECT_EQ(written, planned.exit_code == 0) << planned.errors;
  if (!written) return Met::kNoPlan;
  if (planOf(folder).at("search").at("complete")) return Met::kEnd;
  EXPECT_THAT(planned.output, HasSubstr("which was cut short"));
  return Met::kSearch;
}

// How long a search takes depends on the machine: the delay that meets it at work is found by halving. Where
// one run was slower than others, no delay is left between the bounds: then it begins again.
TEST(SearchCommandInterrupt, GivesTheBestSoFarMarkedAndItRuns) {
  using std::chrono::microseconds;
  const TemporaryFolder folder;
  for (int attempt = 0; attempt < 3; ++attempt) {
    microseconds too_early{0};
    microseconds too_late{0};  // 0: not yet known
    for (microseconds delay = std::chrono::seconds(1);
         delay < std::chrono::seconds(100) && delay - too_early > microseconds(200);) {
      const Met met = interruptPlanning(folder, delay);
      if (met == Met::kSearch) {
        const CommandResult validated = runPipeshard({"validate", folder.file("plan")});
        EXPECT_EQ(validated.exit_code, 0) << validated.errors;
        return;
      }
      (met == Met::kNoPlan ? too_early : too_late) = delay;
      delay = too_late.count() == 0 ? 2 * delay : (too_early + too_late) / 2;
    }
  }
  FAIL() << "no delay met the search at work";
}

TEST(SearchCommandErrors, NameTheOptionOrTheLeastMemory) {
  const TemporaryFolder folder;
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> line = {"plan", "examples/mlp.onnx", "--cluster", "1x2", "--stages", "auto",
                                     "-o",   folder.file("plan")};
    line.insert(line.end(), more.begin(), more.end());
    return runPipeshard(line);
  };
  const CommandResult excluded = run({"--boundary", "relu"});
  EXPECT_EQ(excluded.exit_code, 64) << excluded.errors;
  EXPECT_THAT(excluded.errors, HasSubstr("--boundary and --stages auto exclude each other"));
  const CommandResult small = run({"--memory", "1kB"});
  EXPECT_EQ(small.exit_code, 83) << small.errors;
  EXPECT_THAT(small.errors, HasSubstr("no plan was found that fits into the devices' memory"));
  EXPECT_THAT(small.errors, HasSubstr("the least that a plan of the search was foreseen to need"));
  EXPECT_THAT(small.errors, HasSubstr("try --stages uniform:1 with a named method"));
}

// "The least that a plan of the search was foreseen to need", in bytes.
int64_t leastMemory(const std::string& model, const std::string& schedule) {
  const TemporaryFolder folder;
  const CommandResult refused =
      runPipeshard({"plan", "examples/" + model + ".onnx", "--cluster", "1x2", "--stages", "auto", "--dim",
                    "batch=32", "--microbatches", "4", "--schedule", schedule, "--recompute", "never",
                    "--memory", "100kB", "-o", folder.file("plan")});
  EXPECT_EQ(refused.exit_code, 83);
  std::smatch least;
  const std::regex needed("foreseen to need is [^(]*\\(([0-9]+) bytes\\)");
  return std::regex_search(refused.errors, least, needed) ? std::stoll(least[1].str()) : 0;
}

// All that layers hand from one half of a backward pass to the other is there at once: 1.49 times as much.
TEST(SearchCommandErrors, TheLeastMemoryCountsHalvesWhereTheScheduleHasThem) {
  const int64_t whole = leastMemory("resnet", "1f1b"), halved = leastMemory("resnet", "zb-h1");
  EXPECT_GT(whole, 0);
  EXPECT_GT(halved, whole * 5 / 4);
}

// The best plan cuts microbatches over four devices; a last batch of three rows needs another.
TEST(SearchCommandOptions, ALastBatchThatThePlanCannotTakeLeavesTheNextBest) {
  const TemporaryFolder folder;
  const CommandResult validated =
      runPipeshard({"validate", "examples/mlp.onnx", "--cluster", "1x4", "--stages", "auto", "--last-batch",
                    "3", "--steps", "2", "-o", folder.file("plan")});
  EXPECT_EQ(validated.exit_code, 0) << validated.errors;
  const nlohmann::json plan = planOf(folder);
  EXPECT_EQ(plan.at("last_batch").at("rows"), 3);
  EXPECT_GT(plan.at("search").at("chosen"), 0);
  EXPECT_THAT(plan.at("notes").dump(), HasSubstr("of the search cannot be made"));
}

TEST(SearchCommandOptions, AreKeptTo) {
  const TemporaryFolder folder;
  const CommandResult planned = runPipeshard(
      {"plan", "examples/gpt2.onnx", "--cluster", "1x4", "--stages", "auto", "--schedule", "gpipe",
       "--microbatches", "4", "--recompute", "always", "--method", "zero2", "-o", folder.file("plan")});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const nlohmann::json plan = planOf(folder);
  EXPECT_EQ(plan.at("microbatches"), 4);
  for (const nlohmann::json& alternative : plan.at("alternatives")) {
    EXPECT_EQ(alternative.at("schedule"), "gpipe");
    for (const nlohmann::json& stage : alternative.at("stages"))
      EXPECT_EQ(stage.at("recomputation"), "always");
  }
}

}  // namespace
}  // namespace pipeshard
