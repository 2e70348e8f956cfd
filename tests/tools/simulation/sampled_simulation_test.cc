// Ranks that stand for all: what is simulated of them is what is simulated of all.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"
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
