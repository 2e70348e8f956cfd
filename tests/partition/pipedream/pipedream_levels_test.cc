// PipeDream's planner on several levels: against all plans that there are, enumerated.
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/plan/stage_file.h"
#include "partition/pipedream/pipedream.h"
#include "tests/expect_error.h"

namespace pipeshard {
namespace {

// A stage on `parts` components, each of which runs `inside` (empty on level 1).
struct Tree {
  int first = 0, last = 0, parts = 1;
  std::vector<Tree> inside;
};

// Every way to give layers first..last and all components of a level to stages.
void forEachPlan(const std::vector<PipeDreamLevel>& levels, size_t level, int first, int last,
                 const std::function<void(const std::vector<Tree>&)>& use) {
  std::vector<Tree> stages;
  const std::function<void(int, int)> extend = [&](int next, int left) {
    if (next > last) {
      if (left == 0) use(stages);
      return;
    }
    for (int end = next; end <= last; ++end) {
      for (int parts = 1; parts <= left; ++parts) {
        const auto withInside = [&](const std::vector<Tree>& inside) {
          stages.push_back({next, end, parts, inside});
          extend(end + 1, left - parts);
          stages.pop_back();
        };
        if (level == 1) {
          withInside({});
        } else {
          forEachPlan(levels, level - 1, next, end, withInside);
        }
      }
    }
  };
  extend(first, levels[level - 1].components);
}

// Time and memory of one plan, by the formulas of the header.
class Judge {
 public:
  Judge(const PipeDreamProfile& profile, const PipeDreamRequest& request)
      : profile_(profile), request_(request) {}

  int64_t timeOf(size_t level, const std::vector<Tree>& stages) const {
    const double rate = request_.levels[level - 1].bytes_per_ns;
    int64_t slowest = 0;
    for (size_t s = 0; s < stages.size(); ++s) {
      const Tree& stage = stages[s];
      int64_t inside = 0;
      double parameters = 0;
      for (int l = stage.first; l <= stage.last; ++l) {
        inside += layer(l).compute_ns;
        parameters += static_cast<double>(layer(l).parameter_bytes);
      }
      if (level > 1) inside = timeOf(level - 1, stage.inside);
      const double r = stage.parts;
      slowest = std::max<int64_t>(slowest, std::llround(static_cast<double>(inside) / r) +
                                               std::llround(4 * (r - 1) * parameters / (r * rate) / r));
      if (s > 0)
        slowest = std::max<int64_t>(
            slowest, std::llround(2 * static_cast<double>(layer(stage.first - 1).cut_bytes) / (rate * r)));
    }
    return slowest;
  }

  bool fits(const std::vector<Tree>& stages) const {
    if (request_.memory_bytes == 0) return true;
    struct Leaf {
      int64_t workers, bytes;
    };
    std::vector<Leaf> leaves;
    const std::function<void(const std::vector<Tree>&, int64_t)> flatten = [&](const std::vector<Tree>& trees,
                                                                               int64_t times) {
      for (const Tree& tree : trees) {
        flatten(tree.inside, times * tree.parts);
        if (!tree.inside.empty()) continue;
        Leaf& leaf = leaves.emplace_back(Leaf{times * tree.parts, 0});
        for (int l = tree.first; l <= tree.last; ++l)
          leaf.bytes += layer(l).activation_bytes + layer(l).parameter_bytes;
      }
    };
    flatten(stages, 1);
    int64_t behind = 0;
    for (size_t i = leaves.size(); i-- > 0;) {
      if ((behind + leaves[i].workers - 1) / leaves[i].workers * leaves[i].bytes > request_.memory_bytes)
        return false;
      behind += leaves[i].workers;
    }
    return true;
  }

 private:
  const PipeDreamLayer& layer(int index) const { return profile_.layers[index]; }
  const PipeDreamProfile& profile_;
  const PipeDreamRequest& request_;
};

int64_t bestOfAll(const PipeDreamProfile& profile, const PipeDreamRequest& request, int64_t* plans) {
  const Judge judge(profile, request);
  int64_t best = INT64_MAX;
  forEachPlan(request.levels, request.levels.size(), 0, std::ssize(profile.layers) - 1,
              [&](const std::vector<Tree>& stages) {
                ++*plans;
                if (judge.fits(stages)) best = std::min(best, judge.timeOf(request.levels.size(), stages));
              });
  return best;
}

std::vector<Tree> treesOf(const std::vector<PipeDreamStage>& stages) {
  std::vector<Tree> trees;
  for (const PipeDreamStage& stage : stages)
    trees.push_back({stage.first_layer, stage.last_layer, stage.components, treesOf(stage.inside)});
  return trees;
}

class PipeDreamLevels : public ::testing::Test {
 protected:
  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  PipeDreamProfile drawProfile(int layers) {
    PipeDreamProfile profile;
    for (int l = 0; l < layers; ++l)
      profile.layers.push_back(
          {"", "", draw(1, 1000), draw(0, 4000), draw(0, 3) * draw(0, 1000), draw(0, 2000)});
    return profile;
  }

  // The planner's plan is as fast as the fastest of all; what it returns is that fast, fits, and has every
  // worker once.
  void compare(const PipeDreamProfile& profile, const PipeDreamRequest& request) {
    const int64_t best = bestOfAll(profile, request, &plans_);
    const PipeDreamPlan plan = planAsPipeDream(profile, request);
    ASSERT_EQ(plan.minibatch_ns, best);
    const std::vector<Tree> trees = treesOf(plan.stages);
    const Judge judge(profile, request);
    EXPECT_EQ(judge.timeOf(request.levels.size(), trees), best);
    EXPECT_TRUE(judge.fits(trees));
    nested_ += plan.workerStages().size() > plan.stages.size() && plan.stages.size() > 1 ? 1 : 0;
    std::vector<int> used;
    for (const PipeDreamStage* stage : plan.workerStages())
      used.insert(used.end(), stage->workers.begin(), stage->workers.end());
    std::sort(used.begin(), used.end());
    std::vector<int> all(used.size());
    std::iota(all.begin(), all.end(), 0);
    int64_t workers = 1;
    for (const PipeDreamLevel& level : request.levels) workers *= level.components;
    EXPECT_EQ(std::ssize(used), workers);
    EXPECT_EQ(used, all);
  }

  PipeDreamRequest drawTwoLevels() {
    PipeDreamRequest request;
    for (int level = 0; level < 2; ++level)
      request.levels.push_back(
          {static_cast<int>(draw(1, 4)), static_cast<double>(draw(1, 40)) / (level == 0 ? 2 : 8)});
    return request;
  }

  std::mt19937_64 random_{19};
  int64_t plans_ = 0;
  int nested_ = 0;
};

TEST_F(PipeDreamLevels, TwoAreAsGoodAsTheBestOfAllPlans) {
  for (int trial = 0; trial < 2000; ++trial) {
    const PipeDreamProfile profile = drawProfile(draw(1, 6));
    PipeDreamRequest request = drawTwoLevels();
    compare(profile, request);
    if (HasFatalFailure()) FAIL() << "trial " << trial;
  }
  EXPECT_GT(plans_, 150'000);
  EXPECT_GT(nested_, 40);
}

TEST_F(PipeDreamLevels, WithAMemoryLimitToo) {
  for (int trial = 0; trial < 2000; ++trial) {
    const PipeDreamProfile profile = drawProfile(draw(1, 6));
    PipeDreamRequest request = drawTwoLevels();
    request.memory_bytes = draw(1, 8000);
    compare(profile, request);
    if (HasFatalFailure()) FAIL() << "trial " << trial;
  }
  EXPECT_GT(nested_, 10);
}

TEST_F(PipeDreamLevels, ThreeToo) {
  for (int trial = 0; trial < 60; ++trial) {
    const PipeDreamProfile profile = drawProfile(draw(2, 4));
    PipeDreamRequest request;
    for (int level = 0; level < 3; ++level)
      request.levels.push_back({static_cast<int>(draw(1, 2)), static_cast<double>(draw(1, 40)) / 8});
    if (trial % 2 == 0) request.memory_bytes = draw(2000, 12000);
    compare(profile, request);
    if (HasFatalFailure()) FAIL() << "trial " << trial;
  }
}

TEST_F(PipeDreamLevels, AreThoseOfACluster) {
  EXPECT_THAT(pipeDreamLevels(uniformCluster(1, 4)),
              testing::ElementsAre(PipeDreamLevel{4, uniformCluster(1, 4).nodes[0].inside.bytes_per_ns}));
  Cluster cluster = uniformCluster(3, 4);
  cluster.nodes.assign(3, ClusterNode{.devices = 4, .inside = {0, 150}, .nic = {0, 5}, .nics = 2});
  EXPECT_THAT(pipeDreamLevels(cluster), testing::ElementsAre(PipeDreamLevel{4, 150}, PipeDreamLevel{3, 10}));
  EXPECT_EQ(pipeDreamLevels(uniformCluster(4, 1)).size(), 1u);
  cluster.nodes[1].devices = 2;
  EXPECT_ERROR(pipeDreamLevels(cluster), ErrorCode::kConfiguration, "its nodes differ");
}

TEST_F(PipeDreamLevels, AHarderLimitIsNeverFaster) {
  const PipeDreamProfile profile = drawProfile(5);
  PipeDreamRequest request{.levels = {{2, 1}, {3, 0.5}}};
  const int64_t free = planAsPipeDream(profile, request).minibatch_ns;
  request.memory_bytes = INT64_MAX / 4;
  EXPECT_EQ(planAsPipeDream(profile, request).minibatch_ns, free);
  int64_t last = free;
  for (int64_t memory = 40'000; memory > 0; memory -= 1'000) {
    request.memory_bytes = memory;
    const int64_t now = planAsPipeDream(profile, request).minibatch_ns;
    EXPECT_GE(now, last);
    last = now;
  }
  request.memory_bytes = 1;
  const PipeDreamPlan tight = planAsPipeDream(profile, request);
  EXPECT_EQ(tight.minibatch_ns, tight.data_parallel_ns);  // which keeps nothing
  EXPECT_GT(tight.minibatch_ns, free);
}

TEST_F(PipeDreamLevels, StageFilesOfPlansAreRead) {
  const PipeDreamProfile profile = drawProfile(6);
  const PipeDreamPlan plan = planAsPipeDream(profile, {.levels = {{2, 1}, {2, 0.5}}});
  const StageFile file = parseStageFile(stageFileOf(profile, plan), "stages.json", uniformCluster(2, 2));
  EXPECT_EQ(file.layers, 6);
  const std::vector<const PipeDreamStage*> stages = plan.workerStages();
  ASSERT_EQ(file.stages.size(), stages.size());
  for (size_t s = 0; s < stages.size(); ++s) {
    EXPECT_EQ(file.stages[s].first_layer, LayerId(stages[s]->first_layer));
    EXPECT_EQ(file.stages[s].last_layer, LayerId(stages[s]->last_layer));
    EXPECT_EQ(file.stages[s].devices, idsAt<RankId>(stages[s]->workers));
  }
}

TEST_F(PipeDreamLevels, RefusesTablesThatWouldTakeTooLong) {
  EXPECT_ERROR(planAsPipeDream(drawProfile(3000), {.levels = {{8, 1}, {4, 1}}}), ErrorCode::kUsage,
               "3000 layers on 8 x 4 workers");
}

}  // namespace
}  // namespace pipeshard
