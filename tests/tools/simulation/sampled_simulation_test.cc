// Ranks that stand for all: what is simulated of them is what is simulated of all.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/expect_error.h"
#include "tests/tools/command.h"
#include "tools/options/option_checks.h"
#include "tools/simulation/simulation_report.h"

namespace pipeshard {
namespace {

class SampledSimulation : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(SampledSimulation, IsThatOfAllRanks) {
  const TemporaryFolder folder;
  std::vector<std::string> line = {"plan", "examples/mlp.onnx", "--dim", "batch=64",
                                   "-o",   folder.file("plan")};
  line.insert(line.end(), GetParam().begin(), GetParam().end());
  const CommandResult planned = runPipeshard(line);
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  PlanSimulationRequest request;
  request.directory = folder.file("plan");
  request.profile = "off";
  request.threads = 1;
  const SimulationReport all = simulatePlan(request);
  request.with_json = false;  // so no arena is planned
  const SimulationReport without = simulatePlan(request);
  EXPECT_EQ(without.json, "");
  EXPECT_EQ(without.table, all.table);
  EXPECT_EQ(without.makespan, all.makespan);
  request.with_json = true;
  request.each_simulated = false;
  const SimulationReport shown = simulatePlan(request);
  EXPECT_LT(shown.sample.ranks.size(), all.sample.ranks.size());
  EXPECT_EQ(shown.json, all.json);
  EXPECT_EQ(shown.table, all.table);
  EXPECT_EQ(shown.orders, all.orders);
  EXPECT_EQ(ganttText(shown.gantt, shown.makespan, {}), ganttText(all.gantt, all.makespan, {}));
  request.most_ranks = 1;
  const SimulationReport sampled = simulatePlan(request);
  EXPECT_LT(sampled.sample.ranks.size(), all.sample.ranks.size());
  EXPECT_EQ(sampled.json, all.json);
  EXPECT_EQ(sampled.orders, all.orders);
  EXPECT_EQ(sampled.makespan, all.makespan);
  EXPECT_EQ(sampled.bubble_of_useful, all.bubble_of_useful);
  for (size_t place = 0; place < sampled.sample.ranks.size(); ++place) {
    std::vector<std::string> row = all.table[1 + sampled.sample.ranks[place].index()];
    if (sampled.sample.counts[place] > 1)
      row[0] += ", " + std::to_string(sampled.sample.counts[place]) + " alike";
    EXPECT_EQ(sampled.table[1 + place], row);
  }
}

// Whoever asks for a rank sees it, and those that it exchanges messages with, as they are among all.
TEST_P(SampledSimulation, HasTheRanksThatAreAskedFor) {
  const TemporaryFolder folder;
  std::vector<std::string> line = {"plan", "examples/mlp.onnx", "--dim", "batch=64",
                                   "-o",   folder.file("plan")};
  line.insert(line.end(), GetParam().begin(), GetParam().end());
  ASSERT_EQ(runPipeshard(line).exit_code, 0);
  PlanSimulationRequest request;
  request.directory = folder.file("plan");
  request.profile = "off";
  request.threads = 1;
  request.with_json = false;
  const SimulationReport all = simulatePlan(request);
  request.most_ranks = 1;
  const std::vector<RankId> usual = simulatePlan(request).sample.ranks;
  RankId asked(0);
  while (std::ranges::count(usual, asked) > 0) asked = asked.next();
  request.shown = {asked};
  const SimulationReport shown = simulatePlan(request);
  const auto place = std::ranges::find(shown.sample.ranks, asked) - shown.sample.ranks.begin();
  ASSERT_LT(static_cast<size_t>(place), shown.sample.ranks.size());
  EXPECT_EQ(shown.sample.counts[place], 1);
  EXPECT_EQ(shown.table[1 + place], all.table[1 + asked.index()]);
  EXPECT_GT(shown.sample.ranks.size(), usual.size());
  EXPECT_EQ(shown.makespan, all.makespan);
  request.shown = {RankId(64)};
  EXPECT_ERROR(simulatePlan(request), ErrorCode::kUsage, "--ranks: there is no rank 64");
}

TEST(RankLists, AreNumbersAndRanges) {
  EXPECT_EQ(parseRanks("--ranks", "17,500-503"), idsAt<RankId>({17, 500, 501, 502, 503}));
  EXPECT_EQ(parseRanks("--ranks", ""), std::vector<RankId>());
  for (const char* wrong : {"x", "3-", "-3", "5-4", "1,,2", "1.5", "99999999999"}) {
    SCOPED_TRACE(wrong);
    EXPECT_ERROR(parseRanks("--ranks", wrong), ErrorCode::kUsage, "--ranks: expected ranks");
  }
  EXPECT_ERROR(parseRanks("--ranks", "0-1024"), ErrorCode::kUsage, "more than 1024 ranks");
}

INSTANTIATE_TEST_SUITE_P(
    Plans, SampledSimulation,
    ::testing::Values(std::vector<std::string>{"--cluster", "1x8", "--stages", "uniform:2", "--microbatches",
                                               "4"},
                      std::vector<std::string>{"--cluster", "4x4", "--stages", "uniform:4", "--microbatches",
                                               "4", "--schedule", "zb-h1"},
                      std::vector<std::string>{"--cluster", "2x8", "--stages", "uniform:2", "--clip-norm",
                                               "1", "--microbatches", "2"}));

}  // namespace
}  // namespace pipeshard
