// What layers that share a parameter cost: kept in one way by all of them, cut or whole.
#include "partition/costs/shared_specs.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "ir/graph/training_graph.h"
#include "partition/costs/sharded_stage_costs.h"
#include "partition/costs/stage_costs.h"
#include "sharding/stage/shard_stage.h"
#include "tests/sharding/stage_models.h"

namespace pipeshard {
namespace {

TEST(SharedSpecs, AreAsManyForEveryShape) {
  for (const LogicalMesh& mesh : {LogicalMesh{{4}}, LogicalMesh{{2, 2}}, LogicalMesh{{1, 4}}}) {
    const size_t count = sharedSpecs({256, 64}, mesh).size();
    for (const Shape& shape : {Shape{}, Shape{7}, Shape{256, 64}, Shape{8, 8, 8}}) {
      const std::vector<SharedSpec> specs = sharedSpecs(shape, mesh);
      EXPECT_EQ(specs.size(), count);
      EXPECT_TRUE(specs.front().parameter.isReplicated() && specs.front().parts.isReplicated());
      for (const SharedSpec& spec : specs) {
        EXPECT_EQ(specFault(spec.parameter, shape, mesh), "");
        EXPECT_EQ(specFault(spec.parts, shape, mesh), "");
        EXPECT_TRUE(spec.parameter.partial.empty());
      }
    }
  }
  EXPECT_EQ(sharedSpecs({256, 64}, {{1}}).size(), 1u);
}

TEST(SharedSpecs, CutBothAxesOverAllDevicesOrTheSecondMeshAxis) {
  const auto cut = [](const std::vector<SharedSpec>& specs, size_t axis, const std::vector<int>& over) {
    return std::any_of(specs.begin(), specs.end(),
                       [&](const SharedSpec& spec) { return spec.parameter.axes[axis] == over; });
  };
  const std::vector<SharedSpec> specs = sharedSpecs({256, 64}, {{2, 4}});
  for (size_t axis : {0, 1}) {
    EXPECT_TRUE(cut(specs, axis, {0, 1}));
    EXPECT_TRUE(cut(specs, axis, {1}));
  }
  EXPECT_EQ(sharedSpecs({256, 64}, {{4}}).size(), 5u);
}

// time, bytes; 0: not possible
std::vector<std::optional<PricedStage>> priced(const std::vector<std::pair<int64_t, int64_t>>& ways) {
  std::vector<std::optional<PricedStage>> result;
  for (const auto& [time, bytes] : ways) {
    PricedStage stage;
    stage.forward_ns = time;
    stage.weight_bytes = bytes;
    result.push_back(time == 0 ? std::nullopt : std::optional(stage));
  }
  return result;
}

TEST(SharedChoice, IsOfTheLayersTogether) {
  const auto a = priced({{10, 8}, {6, 8}, {9, 2}, {1, 1}});
  const auto b = priced({{10, 8}, {12, 8}, {10, 2}, {0, 0}});
  const auto choice = chooseShared({&a, &b}, 4);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->fast, 1u);   // 18; 19 and 20 are more
  EXPECT_EQ(choice->small, 2u);  // the last one is not possible for both
  const auto alone = chooseShared({&a}, 4);
  EXPECT_EQ(alone->fast, 3u);
  EXPECT_EQ(alone->small, 3u);
  const auto none = priced({{0, 0}, {0, 0}, {0, 0}, {0, 0}});
  EXPECT_FALSE(chooseShared({&a, &none}, 4));
}

constexpr int64_t kTied = 512 * 128 * 4;

struct TiedModel {
  TrainingGraph training;
  Clustering clustering;
};

TiedModel tiedModel() {
  testing::StageModel model;
  const ValueId x = model.input("x", {16, 512});
  const ValueId tied = model.parameter("tied", {512, 128});
  const ValueId a = model.op("Relu", {model.op("MatMul", {x, tied}, {16, 128})}, {16, 128});
  const ValueId b =
      model.op("Relu", {model.op("MatMul", {a, model.parameter("w", {128, 128})}, {16, 128})}, {16, 128});
  const ValueId c = model.op("Gemm", {b, tied}, {16, 512}, {{"transB", int64_t{1}}});
  TiedModel made{model.finish(model.op("ReduceSum", {c}, {}, {{"keepdims", int64_t{0}}}), "adam:lr=1e-3"),
                 {}};
  made.training.microbatches = 4;
  made.clustering.ends = {1, 3, std::ssize(forwardNodes(made.training)) - 1};
  made.clustering.kinds = {0, 1, 2};
  return made;
}

StageCostOptions cutShared() {
  StageCostOptions options;
  options.cut_shared = true;
  return options;
}

class TiedCosts : public ::testing::Test {
 protected:
  StageCostParts parts(int first, int last, int shared, int boundary = 2) const {
    const StageOption* option =
        costs_.optionFor(first, last, four_, {{4}, {}, Recomputation::kNever, boundary, shared});
    return costs_.parts(first, last, four_, *option);
  }
  int64_t timeOf(const StageOption& option) const {
    return tied_.training.microbatches * option.pass_ns + option.step_ns;
  }

  const TiedModel tied_ = tiedModel();
  const Cluster cluster_ = uniformCluster(1, 4);
  const Submesh four_{0, 1, 4};
  const ShardedStageCosts costs_{tied_.training, tied_.clustering, cluster_, cutShared()};
};

TEST_F(TiedCosts, ShardsAreHeldOnce) {
  const int64_t twice =
      parts(0, 0, 1).weight_bytes + parts(1, 1, 1).weight_bytes + parts(2, 2, 1).weight_bytes;
  EXPECT_EQ(twice - parts(0, 2, 1).weight_bytes, kTied / 4);
  EXPECT_EQ(parts(0, 0, 1).weight_bytes, kTied / 4);
  EXPECT_EQ(parts(0, 0, 1).optimizer_bytes, 2 * kTied / 4);
  EXPECT_EQ(parts(2, 2, 1).gradient_bytes, kTied / 4);
  EXPECT_GT(parts(2, 2, 1).synchronization_ns, 0);  // the exchange with the stage that has the first layer
  EXPECT_LT(parts(0, 2, 1).synchronization_ns,
            parts(0, 0, 1).synchronization_ns + parts(2, 2, 1).synchronization_ns);
}

// The two ways are what their names say.
TEST_F(TiedCosts, OneWayIsFastTheOtherSmall) {
  for (int boundary : {0, 2}) {
    const StageOption fast = *costs_.optionFor(0, 2, four_, {{4}, {}, Recomputation::kNever, boundary, 0});
    const StageOption small = *costs_.optionFor(0, 2, four_, {{4}, {}, Recomputation::kNever, boundary, 1});
    EXPECT_LE(timeOf(fast), timeOf(small));
    EXPECT_LE(small.fixed_bytes, fast.fixed_bytes);
    // The parameter, two parts of its gradient and two states, all cut; w at most whole.
    EXPECT_LE(small.fixed_bytes, 5 * kTied / 4 + 4 * 128 * 128 * 4);
  }
}

// A stage that has all layers, sharded as a whole, is never slower than its costs say, and at most a fifth
// faster than the best of them (the costs keep what crosses layers as a boundary says; these layers are
// small). With the parameter and its gradient replicated it is slower than they, even where everything else
// is free.
TEST_F(TiedCosts, AreThoseOfTheWholeStage) {
  std::vector<NodeId> nodes;
  for (size_t node = 0; node < tied_.training.graph.nodes.size(); ++node) nodes.emplace_back(node);
  for (const std::vector<int>& shape : {std::vector<int>{4}, {2, 2}}) {
    const LogicalMesh mesh{shape};
    const CostModel model = costModelOn(cluster_, idsAt<RankId>({0, 1, 2, 3}), mesh);
    ShardStageOptions options;
    options.microbatches = tied_.training.microbatches;
    const ShardingResult whole = shardStage(tied_.training, nodes, mesh, model, options);
    options.replicated = {tied_.training.parameters.front().value};
    const std::vector<ValueId>& gradient_parts = tied_.training.parameters.front().gradient_parts;
    options.replicated.insert(options.replicated.end(), gradient_parts.begin(), gradient_parts.end());
    const ShardingResult replicated = shardStage(tied_.training, nodes, mesh, model, options);
    int64_t best = INT64_MAX;
    for (int boundary : {0, 1, 2}) {
      for (int shared : {0, 1}) {
        const StageOption* option =
            costs_.optionFor(0, 2, four_, {shape, {}, Recomputation::kNever, boundary, shared});
        if (option == nullptr) continue;
        best = std::min(best, timeOf(*option));
        EXPECT_GE(timeOf(*option), whole.lower_bound_ns);
      }
    }
    EXPECT_LE(static_cast<double>(best), 1.2 * static_cast<double>(whole.total_ns())) << printMesh(mesh);
    EXPECT_LT(best, replicated.total_ns()) << printMesh(mesh);
  }
}

}  // namespace
}  // namespace pipeshard
