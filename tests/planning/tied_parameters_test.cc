// A parameter that layers of several stages read (tied embeddings), where stages are sharded: its shards
// travel, and every stage keeps its own.
#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/graph/stopped_gradient.h"
#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "planning/pipeline.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTied = "lm_head.weight";  // of gpt2.onnx: 256 tokens, 64 wide

struct TiedCase {
  std::string name;
  std::string stages;  // of the stage file; stage 0 has the embedding, the last one the head
  std::string schedule = "1f1b";
  int devices = 4;
  friend void PrintTo(const TiedCase& tied, std::ostream* out) { *out << tied.name; }
};

std::string stageOf(const std::string& layers, const std::string& devices, const std::string& method) {
  return R"({"layers": ")" + layers + R"(", "devices": [)" + devices + "]" +
         (method.empty() ? "" : R"(, "sharding": {"method": ")" + method + "\"}") + "}";
}

std::vector<TiedCase> cases() {
  std::vector<TiedCase> cases;
  for (const std::string method :
       {"auto", "zero2", "zero3", "tensor-parallel", "megatron:2,1", "data-parallel"}) {
    std::string name = method;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; },
        '_');
    cases.push_back({name, stageOf("0..3", "0, 1", method) + ", " + stageOf("4..7", "2, 3", method)});
  }
  const std::string tensor = "tensor-parallel";
  cases.push_back(
      {"one_and_two", stageOf("0..3", "0", "") + ", " + stageOf("4..7", "1, 2", tensor), "1f1b", 3});
  cases.push_back(
      {"two_and_one", stageOf("0..3", "0, 1", tensor) + ", " + stageOf("4..7", "2", ""), "1f1b", 3});
  cases.push_back({"rows_and_two", stageOf("0..3", "0, 1", "") + ", " + stageOf("4..7", "2, 3", tensor)});
  cases.push_back({"two_and_rows", stageOf("0..3", "0, 1", tensor) + ", " + stageOf("4..7", "2, 3", "")});
  cases.push_back({"unequal_shards",
                   stageOf("0..1", "0, 1", tensor) + ", " + stageOf("2..5", "2", "") + ", " +
                       stageOf("6..7", "3, 4, 5", "zero3"),
                   "1f1b", 6});
  cases.push_back({"chunks",
                   stageOf("0..1", "0, 1", tensor) + ", " + stageOf("2..3", "2, 3", tensor) + ", " +
                       stageOf("4..5", "0, 1", tensor) + ", " + stageOf("6..7", "2, 3", tensor),
                   "interleaved:v=2"});
  return cases;
}

class TiedParameters : public ::testing::TestWithParam<TiedCase> {};

TEST_P(TiedParameters, TrainAsOnOneDevice) {
  const TemporaryFolder folder;
  writeFile(folder.file("stages.json"),
            R"({"version": 1, "layers": 8, "stages": [)" + GetParam().stages + "]}");
  const CommandResult result =
      runPipeshard({"validate", "examples/gpt2.onnx", "--cluster", "1x" + std::to_string(GetParam().devices),
                    "--stages", folder.file("stages.json"), "--schedule", GetParam().schedule, "--optimizer",
                    "adamw:lr=0.001", "--microbatches", "2", "--steps", "2", "-o", folder.file("p.plan")});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS"));
}

INSTANTIATE_TEST_SUITE_P(Gpt2, TiedParameters, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// Elements that a rank has of the parameter itself, its states, and its gradient's accumulators.
std::map<std::string, int64_t> heldOf(const Program& program) {
  std::map<std::string, int64_t> held;
  for (const Buffer& buffer : program.buffers) {
    int64_t elements = 1;
    for (int64_t size : buffer.shape) elements *= size;
    held[buffer.name] = elements;
  }
  return held;
}

TEST(TiedParametersOfShardedStages, AreCutOnBoth) {
  const TemporaryFolder folder;
  writeFile(folder.file("stages.json"), R"({"version": 1, "layers": 8, "stages": [)" +
                                            stageOf("0..3", "0, 1", "tensor-parallel") + ", " +
                                            stageOf("4..7", "2, 3", "tensor-parallel") + "]}");
  PlanRequest request;
  request.model_path = std::string(PIPESHARD_SOURCE_DIR) + "/examples/gpt2.onnx";
  request.given.optimizer = parseOptimizer("adamw:lr=0.001");
  request.partition.cluster = parseCluster("1x4");
  request.microbatches = 2;
  request.partition.stages = parseStages(folder.file("stages.json"));
  const PlannedTraining planned = planTraining(request, [](const std::string&) {});
  const std::string name = kTied;
  const int64_t half = 256 * 64 / 2;
  for (RankId rank : {RankId(0), RankId(1)}) {
    const std::map<std::string, int64_t> held = heldOf(planned.whole.ranks.of(rank).program);
    EXPECT_EQ(held.at(name), half);
    EXPECT_EQ(held.at(name + ".first_moment"), half);
    EXPECT_EQ(held.at(name + ".gradient"), half);
    EXPECT_FALSE(held.contains(name + ".gradient@part1"));  // its own part is added up in the gradient
  }
  for (RankId rank : {RankId(2), RankId(3)}) {
    const std::map<std::string, int64_t> held = heldOf(planned.whole.ranks.of(rank).program);
    EXPECT_EQ(held.at(name), half);
    EXPECT_EQ(held.at(name + ".gradient@part0"), half);
  }
}

// The first stage owns the parameter, and its use of it is detached: the gradient comes from the last one
// alone.
TEST(TiedParametersOfShardedStages, AreTrainedByOthersWhereTheOwnersUseIsDetached) {
  const TemporaryFolder folder;
  Graph graph = readModel(PIPESHARD_SOURCE_DIR "/examples/gpt2.onnx");
  const auto lookup = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.is("Gather") && graph.value(node.inputs[0]).name == kTied;
  });
  ASSERT_NE(lookup, graph.nodes.end());
  GraphBuilder builder(graph);
  const ValueId taken = builder.addValue("taken", DataType::kFloat32, {});
  graph.value(taken).shape.reset();
  Node stop = *lookup;
  stop.op_type = "Identity";
  stop.name = "stop";
  stop.attributes.clear();
  stop.inputs = {taken};
  stopGradientAt(stop);
  lookup->outputs[0] = taken;
  graph.nodes.insert(lookup + 1, stop);
  writeModel(graph, folder.file("gpt2.onnx"));
  writeFile(folder.file("stages.json"), R"({"version": 1, "layers": 8, "stages": [)" +
                                            stageOf("0..3", "0, 1", "zero2") + ", " +
                                            stageOf("4..7", "2, 3", "tensor-parallel") + "]}");
  const CommandResult result = runPipeshard(
      {"validate", folder.file("gpt2.onnx"), "--external-data-root", "examples", "--dim", "batch=8",
       "--cluster", "1x4", "--stages", folder.file("stages.json"), "--microbatches", "2", "--steps", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
}

// With the embedding whole on every device that has it, the least that a plan needs of each is 1.33 MiB.
TEST(TiedParametersOfShardedStages, AreSearchedSo) {
  const TemporaryFolder folder;
  const CommandResult result =
      runPipeshard({"validate", "examples/gpt2.onnx", "--cluster", "1x4", "--stages", "auto", "--optimizer",
                    "adamw", "--microbatches", "4", "--memory", "1260000", "-o", folder.file("p.plan")});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS"));
}

}  // namespace
}  // namespace pipeshard
