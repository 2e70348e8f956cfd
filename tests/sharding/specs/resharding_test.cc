// planResharding and reshardingCosts: worked examples, and against all sequences of steps, enumerated from
// the list on top of resharding.h.
#include "sharding/specs/resharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/expect_error.h"
#include "tests/sharding/specs/spec_lists.h"

namespace pipeshard {
namespace {

using namespace pipeshard::testing;
using ::testing::ElementsAre;

std::vector<std::string> stepsOf(const Resharding& resharding) {
  constexpr const char* kNames[] = {"slice",      "keep one",       "all-gather",
                                    "all-reduce", "reduce-scatter", "all-to-all"};
  std::vector<std::string> steps;
  for (const ReshardingStep& step : resharding.steps) {
    steps.push_back(fmt::format("{} {} {}", kNames[static_cast<size_t>(step.kind)], step.mesh_axis,
                                printSpec(step.after)));
  }
  return steps;
}

std::vector<std::string> path(const Shape& shape, const char* from, const char* to, const char* mesh) {
  const LogicalMesh logical = parseMesh(mesh);
  return stepsOf(planResharding(shape, DataType::kFloat32, parseSpec(from), parseSpec(to), logical,
                                CostModel::uniform(logical)));
}

int64_t cost(const Shape& shape, const char* from, const char* to, const char* mesh) {
  const LogicalMesh logical = parseMesh(mesh);
  return planResharding(shape, DataType::kFloat32, parseSpec(from), parseSpec(to), logical,
                        CostModel::uniform(logical))
      .cost_ns;
}

TEST(Resharding, TakesTheStepsOfTheExamples) {
  EXPECT_THAT(path({8, 8}, "S0,R", "R,S0", "2"), ElementsAre("all-to-all 0 R,S0"));
  EXPECT_THAT(path({8, 8}, "R,R;P0", "S0,R", "2"), ElementsAre("reduce-scatter 0 S0,R"));
  EXPECT_THAT(path({8, 8}, "R,R", "R,S0", "2"), ElementsAre("slice 0 R,S0"));
  EXPECT_THAT(path({8, 8}, "R,R", "R,R;P0", "2"), ElementsAre("keep one 0 R,R;P0"));
  EXPECT_THAT(path({8, 8}, "S0,S1", "R,R", "2x2"), ElementsAre("all-gather 0 R,S1", "all-gather 1 R,R"));
  EXPECT_THAT(path({8, 8}, "S01,R", "S10,R", "2x2"),
              ElementsAre("all-gather 1 S0,R", "all-gather 0 R,R", "slice 1 S1,R", "slice 0 S10,R"));
  EXPECT_TRUE(path({8, 8}, "S0,R", "S0,R", "2").empty());
}

TEST(Resharding, CostsWhatTheCostModelSays) {
  EXPECT_EQ(cost({8, 16}, "S0,R", "R,R", "4"), 5077);          // 384 bytes at 5 a nanosecond, and the latency
  EXPECT_EQ(cost({8, 16}, "R,R;P0", "R,R", "4"), 5000 + 154);  // twice that
  EXPECT_EQ(cost({8, 16}, "R,R;P0", "R,S0", "4"), 5077);
  EXPECT_EQ(cost({8, 16}, "S0,R", "R,S0", "4"), 5000 + 19);  // a quarter of it
  EXPECT_EQ(cost({8, 16}, "R,R", "S0,R", "4"), 0);
  EXPECT_EQ(cost({8, 16}, "S0,R", "R,R", "1x4"), 0);  // an axis of one device
  // 3 of 5 rows are the larger half: 192 bytes, 96 of them travel
  EXPECT_EQ(cost({5, 16}, "S01,R", "S0,R", "2x2"), 5000 + 19);
}

TEST(Resharding, ReducesBeforeItGathers) {
  // The sum is scattered to where the other axis cuts: less travels than with an all-reduce.
  EXPECT_THAT(path({64, 64}, "R,S1;P0", "S0,R", "2x2"),
              ElementsAre("reduce-scatter 0 S0,S1", "all-gather 1 S0,R"));
}

TEST(Resharding, PassesOnlySpecsThatTheTensorCanHave) {
  // The order of two cuts changes over the columns, unless there are too few of them.
  EXPECT_THAT(path({4000, 4000}, "S01,R", "S10,R", "2x2"),
              ElementsAre("all-gather 1 S0,R", "all-to-all 0 R,S0", "slice 1 S1,S0", "all-to-all 0 S10,R"));
  EXPECT_THAT(path({4000000, 1}, "S01,R", "S10,R", "2x2"),
              ElementsAre("all-gather 1 S0,R", "all-gather 0 R,R", "slice 1 S1,R", "slice 0 S10,R"));
  const LogicalMesh mesh = parseMesh("4");
  EXPECT_ERROR(planResharding({3, 64}, DataType::kFloat32, parseSpec("S0,R"), parseSpec("R,R"), mesh,
                              CostModel::uniform(mesh)),
               ErrorCode::kInternal, "axis 0 has 3 elements for 4 devices");
}

TEST(Resharding, RefusesMeshesOfTooManyAxes) {
  const LogicalMesh mesh = parseMesh("2x2x2x2x2x2");
  EXPECT_ERROR(planResharding({64, 64, 64, 64}, DataType::kFloat32, replicated(4), parseSpec("S0,R,R,R"),
                              mesh, CostModel::uniform(mesh)),
               ErrorCode::kConfiguration, "use a mesh of fewer axes");
}

// All that one step makes of a spec, and what it costs: written from the definition, with sets.
struct Next {
  ShardingSpec spec;
  int64_t cost_ns;
};
std::vector<Next> allSteps(const ShardingSpec& spec, const Shape& shape, DataType type,
                           const LogicalMesh& mesh, const CostModel& model) {
  std::vector<Next> next;
  const auto bytes = [&](const ShardingSpec& of) {
    return largestShard(of, shape, mesh) * static_cast<int64_t>(dataTypeSize(type));
  };
  const auto add = [&](const ShardingSpec& after, int mesh_axis, int64_t share, int64_t of_bytes) {
    if (!specFault(after, shape, mesh).empty()) return;
    const int64_t n = mesh.axisSize(mesh_axis);
    const LinkCost& link = model.links[mesh_axis];
    const int64_t travels = share * ((of_bytes * (n - 1) + n - 1) / n);
    next.push_back(
        {after, n == 1 || share == 0
                    ? 0
                    : link.latency_ns + std::llround(static_cast<double>(travels) / link.bytes_per_ns)});
  };
  for (int a = 0; a < mesh.rank(); ++a) {
    const bool is_partial = std::count(spec.partial.begin(), spec.partial.end(), a) > 0;
    ShardingSpec without = spec;
    std::erase(without.partial, a);
    int gathered = -1;
    for (size_t t = 0; t < shape.size(); ++t) {
      if (!spec.axes[t].empty() && spec.axes[t].back() == a) gathered = t;
    }
    if (gathered >= 0) without.axes[gathered].pop_back();
    if (!is_partial && gathered < 0 && spec.uses(a)) continue;  // under another cut
    if (is_partial) add(without, a, 2, bytes(spec));
    if (gathered >= 0) add(without, a, 1, bytes(without));
    for (size_t t = 0; t < shape.size(); ++t) {
      if (static_cast<int>(t) == gathered) continue;
      ShardingSpec after = without;
      after.axes[t].push_back(a);
      add(after, a, spec.uses(a) ? 1 : 0, is_partial ? bytes(spec) : std::max(bytes(spec), bytes(after)));
    }
    if (spec.uses(a)) continue;
    without.partial.push_back(a);
    std::sort(without.partial.begin(), without.partial.end());
    add(without, a, 0, 0);
  }
  return next;
}

constexpr size_t kMostSteps = 5;

void trySequences(const ShardingSpec& spec, int64_t cost_ns, size_t steps, const Shape& shape,
                  const LogicalMesh& mesh, const CostModel& model,
                  std::map<ShardingSpec, std::vector<int64_t>>& best) {
  // best[spec][k]: of at most k steps. A prefix that is no better than one as short leads to nothing better.
  auto [found, is_new] = best.try_emplace(spec, kMostSteps + 1, INT64_MAX);
  if (found->second[steps] <= cost_ns) return;
  for (size_t k = steps; k <= kMostSteps; ++k) found->second[k] = std::min(found->second[k], cost_ns);
  if (steps == kMostSteps) return;
  for (const Next& next : allSteps(spec, shape, DataType::kFloat64, mesh, model)) {
    trySequences(next.spec, cost_ns + next.cost_ns, steps + 1, shape, mesh, model, best);
  }
}

// Links of different speed, so that what is cheapest depends on the axis.
CostModel unequalLinks(const LogicalMesh& mesh) {
  CostModel model = CostModel::uniform(mesh);
  for (size_t a = 0; a < model.links.size(); ++a)
    model.links[a] = {100 + 300 * static_cast<int64_t>(a), a == 0 ? 0.7 : 3.1};
  return model;
}

// Every step is one of the list, at its price, and leads to `to` in the end.
void checkSteps(const Resharding& plan, const ShardingSpec& from, const ShardingSpec& to, const Shape& shape,
                const LogicalMesh& mesh, const CostModel& model) {
  int64_t sum = 0;
  ShardingSpec at = from;
  for (const ReshardingStep& step : plan.steps) {
    const std::vector<Next> possible = allSteps(at, shape, DataType::kFloat64, mesh, model);
    ASSERT_TRUE(std::any_of(possible.begin(), possible.end(), [&](const Next& next) {
      return next.spec == step.after && next.cost_ns == step.cost_ns;
    }));
    sum += step.cost_ns;
    at = step.after;
  }
  ASSERT_EQ(sum, plan.cost_ns);
  ASSERT_EQ(at, to);
}

// All pairs; returns how many there are, and how many take more steps than the enumeration.
std::pair<size_t, size_t> checkAllPairs(const Shape& shape, const LogicalMesh& mesh) {
  const CostModel model = unequalLinks(mesh);
  const std::vector<ShardingSpec> specs = specsOf(shape, mesh);
  const std::vector<int64_t> table = reshardingCosts(shape, DataType::kFloat64, specs, specs, mesh, model);
  size_t long_ones = 0;
  for (size_t f = 0; f < specs.size(); ++f) {
    std::map<ShardingSpec, std::vector<int64_t>> best;
    trySequences(specs[f], 0, 0, shape, mesh, model, best);
    for (size_t t = 0; t < specs.size(); ++t) {
      SCOPED_TRACE(printSpec(specs[f]) + " to " + printSpec(specs[t]));
      const Resharding plan = planResharding(shape, DataType::kFloat64, specs[f], specs[t], mesh, model);
      EXPECT_EQ(plan.cost_ns, table[f * specs.size() + t]);
      checkSteps(plan, specs[f], specs[t], shape, mesh, model);
      const size_t steps = plan.steps.size();
      if (steps > kMostSteps) {
        ++long_ones;
        continue;
      }
      const std::vector<int64_t>& found = best.at(specs[t]);
      EXPECT_EQ(plan.cost_ns, found[kMostSteps]);
      EXPECT_TRUE(steps == 0 || found[steps - 1] > plan.cost_ns) << "fewer steps would do";
    }
  }
  return {specs.size() * specs.size(), long_ones};
}

TEST(Resharding, IsTheCheapestOfAllSequencesOfSteps) {
  size_t pairs = 0, long_ones = 0;
  for (const char* mesh : {"2x2", "2x4", "1x4", "4x1", "3", "2x1x3"}) {
    for (const Shape& shape : {Shape{5, 7}, Shape{4, 6, 3}, Shape{3, 40}, Shape{9}, Shape{}}) {
      SCOPED_TRACE(mesh + shapeToString(shape));
      const auto [all, beyond] = checkAllPairs(shape, parseMesh(mesh));
      pairs += all;
      long_ones += beyond;
    }
  }
  EXPECT_GT(pairs, 10'000u);
  EXPECT_LT(long_ones * 20, pairs);
}

TEST(Resharding, TheTableIsThatOfSinglePairsWhicheverSideIsLonger) {
  const LogicalMesh mesh = parseMesh("2x4");
  const Shape shape{16, 9, 8};
  const CostModel model = unequalLinks(mesh);
  const std::vector<ShardingSpec> all = specsOf(shape, mesh);
  const std::vector<ShardingSpec> some{parseSpec("S0,R,S1"), parseSpec("R,R,R;P01"), parseSpec("S10,R,R")};
  const std::vector<int64_t> wide = reshardingCosts(shape, DataType::kFloat32, some, all, mesh, model);
  const std::vector<int64_t> tall = reshardingCosts(shape, DataType::kFloat32, all, some, mesh, model);
  for (size_t s = 0; s < some.size(); ++s) {
    for (size_t a = 0; a < all.size(); ++a) {
      EXPECT_EQ(wide[s * all.size() + a],
                planResharding(shape, DataType::kFloat32, some[s], all[a], mesh, model).cost_ns);
      EXPECT_EQ(tall[a * some.size() + s],
                planResharding(shape, DataType::kFloat32, all[a], some[s], mesh, model).cost_ns);
    }
  }
}

TEST(CostModel, KnowsItsCollectives) {
  for (CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                              CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
    Node node;
    node.domain = kPipeshardDomain;
    node.op_type = collectiveName(kind);
    EXPECT_EQ(collectiveKind(node), kind);
    node.domain = "";
    EXPECT_EQ(collectiveKind(node), std::nullopt);
  }
  EXPECT_EQ(collectiveBytes(CollectiveKind::kAllReduce, 8, 8), 8);
  EXPECT_EQ(collectiveBytes(CollectiveKind::kAllGather, 8, 32), 32);
  EXPECT_EQ(collectiveBytes(CollectiveKind::kReduceScatter, 32, 8), 32);
  EXPECT_EQ(collectiveBytes(CollectiveKind::kAllToAll, 12, 16), 16);
}

TEST(CostModel, ComputeIsTheSlowerOfArithmeticAndMemory) {
  const CostModel model;
  EXPECT_EQ(computeCost(model, 1e6, 100), 20'000);
  EXPECT_EQ(computeCost(model, 100, 1'000'000), 100'000);
  EXPECT_EQ(computeCost(model, 0, 0), 0);
}

}  // namespace
}  // namespace pipeshard
