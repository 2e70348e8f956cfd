// PipeDream's planner: what its authors' optimizer makes of their own profile, and its text.
#include "partition/pipedream/pipedream.h"

#include <array>
#include <fstream>
#include <numeric>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/expect_error.h"

namespace pipeshard {
namespace {

using ::testing::ElementsAre;

PipeDreamProfile vgg16() {
  std::ifstream file(std::string(PIPESHARD_SOURCE_DIR) + "/examples/pipedream/vgg16_profile.txt");
  std::ostringstream text;
  text << file.rdbuf();
  return parsePipeDreamProfile(text.str(), "vgg16_profile.txt");
}

TEST(PipeDreamProfile, HasTheLayersOfVgg16) {
  const PipeDreamProfile profile = vgg16();
  ASSERT_EQ(profile.layers.size(), 40u);  // the input is none
  EXPECT_EQ(profile.computeNs(), 672'535'000);
  EXPECT_EQ(profile.layers.front().name, "node2");
  EXPECT_EQ(profile.layers.front().description,
            "Conv2d(3, 64, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))");
  EXPECT_EQ(profile.layers.front().cut_bytes, 1'644'167'168);
  EXPECT_EQ(profile.layers.back().name, "node41");
  EXPECT_EQ(profile.layers.back().cut_bytes, 0);
  // The flattening reads the pooled images (node32) and their size (node33): both cross the cut behind the
  // latter.
  EXPECT_EQ(profile.layers[31].name, "node33");
  EXPECT_EQ(profile.layers[31].cut_bytes, 12'845'056 + 4);
}

PipeDreamPlan planOn(const PipeDreamProfile& profile, std::vector<PipeDreamLevel> levels,
                     int64_t memory_bytes = 0) {
  return planAsPipeDream(profile, {std::move(levels), memory_bytes});
}

// reference: the optimizer of msr-fiddle/pipedream with -n 4 -b 12e9, equal to the 3:1 split that its README
// publishes.
TEST(PlanAsPipeDream, GivesThePublishedSplitOfVgg16) {
  const PipeDreamPlan plan = planOn(vgg16(), {{4, 12}});
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].first_layer, 0);
  EXPECT_EQ(plan.stages[0].last_layer, 14);
  EXPECT_EQ(plan.stages[0].components, 3);
  EXPECT_EQ(plan.stages[1].components, 1);
  EXPECT_EQ(plan.stages[1].pass_ns, 163'849'000);
  EXPECT_EQ((plan.minibatch_ns + 500) / 1000, 170'076);
  const auto ratio = [](int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
  EXPECT_NEAR(ratio(plan.one_worker_ns, plan.minibatch_ns), 3.954, 0.0005);
  EXPECT_NEAR(ratio(plan.one_worker_ns, plan.data_parallel_ns), 3.318, 0.0006);
  EXPECT_NEAR(ratio(plan.data_parallel_ns, plan.minibatch_ns), 1.192, 0.0005);
  EXPECT_EQ(plan.stages[0].versions, 2);
  EXPECT_EQ(plan.stages[1].versions, 1);
}

// The paper's Table 1 has VGG-16 as 15-1 on 16 workers of two servers, 25 Gbit/s between them. That is a plan
// of one level: on levels 8,2 the 15 would not be whole servers.
TEST(PlanAsPipeDream, GivesThePublishedSplitOn16Workers) {
  const PipeDreamPlan plan = planOn(vgg16(), {{16, 3.125}});
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].components, 15);
  EXPECT_EQ(plan.stages[1].components, 1);
}

TEST(PlanAsPipeDream, ReplicatesEverythingWhereBandwidthIsPlenty) {
  for (const std::vector<PipeDreamLevel>& levels :
       {std::vector<PipeDreamLevel>{{4, 1e6}}, {{4, 1e6}, {2, 1e6}}}) {
    const PipeDreamPlan plan = planOn(vgg16(), levels);
    ASSERT_EQ(plan.workerStages().size(), 1u);
    EXPECT_EQ(plan.minibatch_ns, plan.data_parallel_ns);
    EXPECT_EQ(plan.workerStages().front()->versions, 1);
  }
}

TEST(PlanAsPipeDream, UsesAllWorkers) {
  for (const int workers : {1, 2, 3, 5, 8}) {
    const PipeDreamPlan plan = planOn(vgg16(), {{workers, 12}});
    std::vector<int> used;
    for (const PipeDreamStage* stage : plan.workerStages())
      used.insert(used.end(), stage->workers.begin(), stage->workers.end());
    std::vector<int> all(workers);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(used, all);
  }
}

// Levels of one component change nothing, wherever they are.
TEST(PlanAsPipeDream, OnOneLevelIsTheSameAmongLevelsOfOneComponent) {
  const PipeDreamPlan plain = planOn(vgg16(), {{4, 12}});
  for (const std::vector<PipeDreamLevel>& levels :
       {std::vector<PipeDreamLevel>{{1, 3}, {4, 12}}, {{4, 12}, {1, 3}}, {{1, 1}, {4, 12}, {1, 1}}}) {
    const PipeDreamPlan plan = planOn(vgg16(), levels);
    EXPECT_EQ(plan.minibatch_ns, plain.minibatch_ns);
    EXPECT_EQ(plan.data_parallel_ns, plain.data_parallel_ns);
    ASSERT_EQ(plan.workerStages().size(), 2u);
    for (size_t s : {0, 1}) {
      EXPECT_EQ(plan.workerStages()[s]->last_layer, plain.stages[s].last_layer);
      EXPECT_EQ(plan.workerStages()[s]->workers, plain.stages[s].workers);
      EXPECT_EQ(plan.workerStages()[s]->versions, plain.stages[s].versions);
    }
  }
}

// nanoseconds, activation, parameters
PipeDreamProfile profileOf(const std::vector<std::array<int64_t, 3>>& layers) {
  PipeDreamProfile profile;
  for (const auto& [compute, activation, parameters] : layers)
    profile.layers.push_back({"", "", compute, activation, parameters, activation});
  profile.layers.back().cut_bytes = 0;
  return profile;
}

TEST(PlanAsPipeDream, OnTwoLevelsIsAsTheHeadersExample) {
  const auto profile = [](int64_t parameters) {
    return profileOf({{12'000'000, 0, 0}, {4'000'000, 0, parameters}});
  };
  EXPECT_EQ(planOn(profile(0), {{2, 1}, {2, 1}}).minibatch_ns, 4'000'000);
  const PipeDreamPlan plan = planOn(profile(6'000'000), {{2, 1e9}, {2, 1}});
  EXPECT_EQ(plan.minibatch_ns, 6'000'000);
  EXPECT_EQ(plan.data_parallel_ns, 10'000'000);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_THAT(plan.stages[0].inside.front().workers, ElementsAre(0, 1));
  EXPECT_THAT(plan.stages[1].inside.front().workers, ElementsAre(2, 3));
}

// Minibatches go to the outer components in turn first, so that what is behind a replica inside a component
// is in that component.
TEST(PlanAsPipeDream, NumbersWorkersOfNestedReplicas) {
  // Slow links between the nodes, and weights that only those inside can keep equal: both nodes run the same
  // two stages of 3 and 1.
  const PipeDreamPlan plan = planOn(profileOf({{30'000, 0, 0}, {10'000, 0, 40'000}}), {{4, 10}, {2, 20}});
  ASSERT_EQ(plan.stages.size(), 1u);
  EXPECT_EQ(plan.stages[0].components, 2);
  ASSERT_EQ(plan.stages[0].inside.size(), 2u);
  EXPECT_THAT(plan.stages[0].inside[0].workers, ElementsAre(0, 4, 1, 5, 2, 6));
  EXPECT_THAT(plan.stages[0].inside[1].workers, ElementsAre(3, 7));
  EXPECT_EQ(plan.stages[0].inside[0].versions, 2);
  EXPECT_EQ(plan.stages[0].inside[1].versions, 1);
  EXPECT_EQ(plan.minibatch_ns, 5'000 + 4 * 40'000 / 2 / 20 / 2);
}

const char* const kLine =
    " -- Op -- forward_compute_time=1.000, backward_compute_time=2.000, activation_size=8.000, "
    "parameter_size=4.000\n";

TEST(ParsePipeDreamProfile, TakesBranchesInOneOrderAndCountsWhatCrosses) {
  const PipeDreamProfile profile = parsePipeDreamProfile(
      std::string("node10") + kLine +
          "node2 -- Split -- forward_compute_time=1.000, backward_compute_time=0.500, " +
          "activation_size=[8.0; 16.0], parameter_size=0.000 -- stage_id=1\nnode3" + kLine + "node4" + kLine +
          "\tnode2 -- node3\n\tnode2 -- node4\n\tnode3 -- node10\n\tnode4 -- node10\n",
      "file");
  ASSERT_EQ(profile.layers.size(), 4u);
  std::vector<std::string> names;
  std::vector<int64_t> cuts;
  for (const PipeDreamLayer& layer : profile.layers) {
    names.push_back(layer.name);
    cuts.push_back(layer.cut_bytes);
  }
  EXPECT_THAT(names, ElementsAre("node2", "node3", "node4", "node10"));
  EXPECT_THAT(cuts, ElementsAre(24, 24 + 8, 8 + 8, 0));
  EXPECT_EQ(profile.layers.front().compute_ns, 1'500'000);
}

TEST(ParsePipeDreamProfile, SaysWhereTheTextIsWrong) {
  const std::string one = std::string("node1") + kLine;
  const auto parse = [](const std::string& text) { parsePipeDreamProfile(text, "file"); };
  EXPECT_ERROR(parse("node1 -- Conv\n"), ErrorCode::kBadModel,
               "file: line 1: expected \"NODE -- DESCRIPTION");
  EXPECT_ERROR(parse(one + one), ErrorCode::kBadModel, "line 2: a second layer node1");
  EXPECT_ERROR(parse(one + "\tnode1 -- node7\n"), ErrorCode::kBadModel, "line 2: an edge of node7");
  EXPECT_ERROR(parse(one + "\tnode1\n"), ErrorCode::kBadModel, "line 2: expected \"NODE -- NODE\"");
  EXPECT_ERROR(parse("a -- Op -- forward_compute_time=x, backward_compute_time=1, activation_size=1, "
                     "parameter_size=1\n"),
               ErrorCode::kBadModel, "line 1: \"x\" is no number");
  EXPECT_ERROR(parse("a -- Op -- forward_compute_time=1, activation_size=1, parameter_size=1\n"),
               ErrorCode::kBadModel, "expected \"backward_compute_time=NUMBER\"");
  EXPECT_ERROR(parse(std::string("a") + kLine + "b" + kLine + "\ta -- b\n\tb -- a\n"), ErrorCode::kBadModel,
               "circle");
  EXPECT_ERROR(parse(""), ErrorCode::kBadModel, "no layers");
}

// 1e15 ms are more nanoseconds than an integer holds: they became the smallest one.
TEST(ParsePipeDreamProfile, RefusesSumsThatDoNotFit) {
  const auto parse = [](const std::string& forward, const std::string& activations) {
    std::string text;
    for (const char* name : {"node1", "node2"})
      text += fmt::format(
          "{} -- Op -- forward_compute_time={}, backward_compute_time=2, activation_size={}, "
          "parameter_size=1\n",
          name, forward, activations);
    return parsePipeDreamProfile(text + "\tnode1 -- node2\n", "file");
  };
  EXPECT_EQ(parse("4e11", "1e15").computeNs(), 800'000'000'004'000'000);
  EXPECT_ERROR(parse("1e15", "1"), ErrorCode::kBadModel,
               "file: line 1: the forward_compute_time of all layers up to here is more than 1e+12");
  EXPECT_ERROR(parse("6e11", "1"), ErrorCode::kBadModel, "file: line 2: the forward_compute_time");
  std::string many = "[";
  for (int i = 0; i < 600; ++i) many += "1e15; ";
  EXPECT_ERROR(parse("1", many + "1]"), ErrorCode::kBadModel, "line 2: the activation_size of all layers");
}

}  // namespace
}  // namespace pipeshard
