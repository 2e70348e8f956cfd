// Receives posted ahead, with real models and real workers: the bits are those without, and one device's
// numbers.
#include <algorithm>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ir/program/program.h"
#include "runtime/execute/dump.h"
#include "runtime/execute/rank_image.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

struct OverlapCase {
  std::string model;
  int ranks;
  std::vector<std::string> options;
};
void PrintTo(const OverlapCase& c, std::ostream* stream) {
  *stream << c.model << " " << ::testing::PrintToString(c.options);
}

class OverlapReceives : public ::testing::TestWithParam<OverlapCase> {};

size_t postedReceives(const std::string& plan, RankId rank) {
  const std::vector<Instruction> instructions = loadProgram(plan, rank).instructions.unrolled();
  return static_cast<size_t>(
      std::count_if(instructions.begin(), instructions.end(), [](const Instruction& instruction) {
        return instruction.kind == InstructionKind::kReceive && instruction.background;
      }));
}

size_t postedReceives(const std::string& plan, int ranks) {
  size_t posted = 0;
  for (int rank = 0; rank < ranks; ++rank) posted += postedReceives(plan, RankId(rank));
  return posted;
}

TEST_P(OverlapReceives, ChangeNoBit) {
  const auto& [model, ranks, options] = GetParam();
  const TemporaryFolder folder;
  for (const std::string overlap : {"off", "on"}) {
    const std::string plan = folder.file("plan_" + overlap);
    std::vector<std::string> arguments{"plan",        "examples/" + model + ".onnx", "-o",
                                       plan,          "--overlap-receives",          overlap,
                                       "--optimizer", "sgd:lr=0.1,momentum=0.9"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const CommandResult planned = runPipeshard(arguments);
    ASSERT_EQ(planned.exit_code, 0) << planned.output << planned.errors;
    const CommandResult run = runPipeshard(
        {overlap == "on" ? "validate" : "run", plan, "--steps", "2", "--dump", folder.file(overlap)});
    ASSERT_EQ(run.exit_code, 0) << run.output << run.errors;
    EXPECT_EQ(postedReceives(plan, ranks) > 0, overlap == "on");
  }
  for (const int64_t step : {1, 2}) {
    const StepDump off = StepDump::open(folder.file("off"), step, ranks);
    const StepDump on = StepDump::open(folder.file("on") + "/planned", step, ranks);
    size_t compared = 0;
    for (const std::string& name : off.names()) {
      ++compared;
      EXPECT_TRUE(on.read(name).bytes == off.read(name).bytes) << "step " << step << ", " << name;
    }
    EXPECT_GT(compared, 5u);
  }
}

std::vector<std::string> onRanks(int ranks, const std::string& schedule, std::vector<std::string> more = {}) {
  more.insert(more.end(),
              {"--cluster", "1x" + std::to_string(ranks), "--schedule", schedule, "--microbatches", "4"});
  return more;
}

INSTANTIATE_TEST_SUITE_P(
    Examples, OverlapReceives,
    ::testing::Values(OverlapCase{"gpt2", 2, onRanks(2, "1f1b")},
                      OverlapCase{"gpt2", 4, onRanks(4, "1f1b", {"--stage-devices", "2,2"})},
                      OverlapCase{"llama", 2, onRanks(2, "zb-h1", {"--recompute", "always"})},
                      OverlapCase{
                          "llama", 4,
                          onRanks(4, "gpipe", {"--stage-devices", "2,2", "--method", "tensor-parallel"})},
                      OverlapCase{"mlp", 2, onRanks(2, "dual-pipe-v")},
                      OverlapCase{"resnet", 3, onRanks(3, "interleaved:v=2")}));

nlohmann::json readJson(const std::string& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);
}

// A plan says how it was made; its simulation hides messages behind passes, and counts the memory that this
// takes.
TEST(OverlapReceivesOption, IsKeptInThePlanAndShownByTheSimulation) {
  const TemporaryFolder folder;
  std::map<std::string, nlohmann::json> simulated;
  for (const std::string overlap : {"off", "on"}) {
    const std::string plan = folder.file(overlap);
    const CommandResult planned =
        runPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "1x2", "--microbatches", "8",
                      "--overlap-receives", overlap, "-o", plan});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
    EXPECT_EQ(readJson(plan + "/plan.json").value("overlap_receives", "off"), overlap);
    const CommandResult simulation = runPipeshard({"simulate", plan, "--threads", "1", "--link-gbytes", "0.5",
                                                   "--json", folder.file(overlap + ".json")});
    ASSERT_EQ(simulation.exit_code, 0) << simulation.errors;
    simulated[overlap] = readJson(folder.file(overlap + ".json"));
    const CommandResult run =
        runPipeshard({"run", plan, "--threads", "1", "--steps", "1", "--json", folder.file("run.json")});
    ASSERT_EQ(run.exit_code, 0) << run.errors;
    const nlohmann::json ranks = readJson(folder.file("run.json")).at("ranks");
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_EQ(simulated[overlap].at("arena_bytes").at(rank), ranks.at(rank).at("arena_bytes"))
          << overlap << ", rank " << rank;
  }
  EXPECT_EQ(postedReceives(folder.file("off"), 2), 0u);
  // Of a microbatch a message forward and one backward; the step's first one has nothing before it.
  EXPECT_EQ(postedReceives(folder.file("on"), 2), 2u * 8 - 1);
  EXPECT_LT(simulated["on"].at("makespan").get<double>(),
            0.99 * simulated["off"].at("makespan").get<double>());
  for (size_t rank = 0; rank < 2; ++rank) {
    const int64_t more = simulated["on"].at("arena_bytes").at(rank).get<int64_t>() -
                         simulated["off"].at("arena_bytes").at(rank).get<int64_t>();
    // one action's message: a tensor 2x16x64 of float32
    EXPECT_LE(more, 2 * 16 * 64 * 4) << "rank " << rank;
  }
}

// 2x2 in four stages: of the three cuts, the one in the middle lies between the nodes.
TEST(OverlapReceivesOption, IsByDefaultBetweenNodes) {
  const TemporaryFolder folder;
  for (const auto& [cluster, ranks_that_post] : std::map<std::string, std::vector<bool>>{
           {"1x4", {false, false, false, false}}, {"2x2", {false, true, true, false}}}) {
    const std::string plan = folder.file(cluster);
    const CommandResult planned =
        runPipeshard({"plan", "examples/mlp.onnx", "--cluster", cluster, "--microbatches", "8", "-o", plan});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
    EXPECT_EQ(readJson(plan + "/plan.json").value("overlap_receives", "off"),
              cluster == "2x2" ? "between-nodes" : "off");
    std::vector<bool> posts;
    for (int rank = 0; rank < 4; ++rank) posts.push_back(postedReceives(plan, RankId(rank)) > 0);
    EXPECT_EQ(posts, ranks_that_post) << cluster;
    const CommandResult validated = runPipeshard({"validate", plan});
    EXPECT_EQ(validated.exit_code, 0) << validated.errors;
  }
}

TEST(OverlapReceivesOption, IsOnOrOff) {
  const TemporaryFolder folder;
  const CommandResult wrong =
      runPipeshard({"plan", "examples/gpt2.onnx", "--overlap-receives", "perhaps", "-o", folder.file("x")});
  EXPECT_EQ(wrong.exit_code, 64);
  EXPECT_NE((wrong.errors + wrong.output).find("--overlap-receives"), std::string::npos) << wrong.errors;
}

}  // namespace
}  // namespace pipeshard
