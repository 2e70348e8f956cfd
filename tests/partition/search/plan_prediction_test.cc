#include "partition/search/plan_prediction.h"

#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "partition/families/make_schedule.h"
#include "tests/expect_error.h"
#include "tests/partition/search/stage_cost_tables.h"

namespace pipeshard {
namespace {

// Two or more stages of one device each, one layer each: F = I = W = 10, the update 7, transfers as told.
class FixedCosts : public StageCosts {
 public:
  explicit FixedCosts(int64_t transfer_ns = 0) : transfer_ns_(transfer_ns) {
    option_.pass_ns = 30;
    option_.step_ns = 7;
    option_.fixed_bytes = 1000;
    option_.activation_bytes = 100;
    option_.transient_bytes = 10;
  }
  int layers() const override { return 8; }
  int submeshClass(const Submesh&) const override { return 0; }
  const std::vector<StageOption>& options(int, int, const Submesh&) const override {
    static const std::vector<StageOption> none;
    return none;
  }
  int64_t transfer(int, const Submesh&, int, const Submesh&, int) const override { return transfer_ns_; }
  int64_t memoryBytes(const Submesh&) const override { return 1310; }
  const StageOption& option() const { return option_; }

 private:
  int64_t transfer_ns_;
  StageOption option_;
};

CountedCosts counted(int64_t transfer_ns = 0) {
  CountedCosts costs;
  costs.costs = std::make_shared<FixedCosts>(transfer_ns);
  costs.config = [](int) { return StageConfig{{1}}; };
  costs.parts = [](int, int, const Submesh&, const StageOption&) {
    StageCostParts parts;
    parts.forward_ns = parts.backward_input_ns = parts.backward_weight_ns = 10;
    parts.update_ns = 4;
    parts.halved_transient_bytes = 10;
    parts.synchronization_ns = 3;
    parts.weight_bytes = 300;
    return parts;
  };
  return costs;
}

// Stage s on device `devices[s]`.
std::vector<AssignedStage> stagesOn(const std::vector<int>& devices) {
  std::vector<AssignedStage> stages;
  const FixedCosts costs;
  for (size_t s = 0; s < devices.size(); ++s)
    stages.push_back({static_cast<int>(s), static_cast<int>(s), {devices[s], 1, 1}, costs.option(), 0});
  return stages;
}

TEST(PlanPrediction, OfEqualStagesIsWhatTheFormulasSay) {
  const auto step = [&](const std::string& schedule, std::vector<int> devices, int64_t microbatches) {
    return predictPlan(counted(), stagesOn(devices), microbatches, parseSchedule(schedule), {})->step_ns;
  };
  EXPECT_EQ(step("1f1b", {0}, 4), 4 * 30 + 7);
  EXPECT_EQ(step("1f1b", {0, 1}, 2), (2 + 1) * 30 + 7);
  EXPECT_EQ(step("gpipe", {0, 1, 2, 3}, 8), (8 + 3) * 30 + 7);
  EXPECT_EQ(step("zb-h1", {0, 1, 2}, 8), 8 * 30 + 2 * 10 + 7);  // families.h: idle (p-1)(tF+tI-tW)
  // (m + (p-1)/v)(tF+tB) of a rank's whole share
  EXPECT_EQ(step("interleaved:v=2", {0, 1, 0, 1}, 4), 4 * 60 + 30 + 14);
}

TEST(PlanPrediction, TransfersTravelBetweenStagesOnDifferentDevices) {
  const std::optional<PredictedPlan> plan = predictPlan(counted(8), stagesOn({0, 1}), 1, {"1f1b"}, {});
  EXPECT_EQ(plan->step_ns, 10 + 4 + 10 + 20 + 4 + 20 + 7);
  EXPECT_EQ(plan->stages[0].transfer_ns, 8);
  EXPECT_EQ(plan->stages[1].transfer_ns, 0);
}

TEST(PlanPrediction, MemoryIsThatOfTheScheduleInFlight) {
  const auto memory = [&](const std::string& schedule, std::vector<int> devices) {
    return predictPlan(counted(), stagesOn(devices), 8, parseSchedule(schedule), {})->memory_bytes;
  };
  EXPECT_EQ(memory("1f1b", {0, 1, 2}), (std::vector<int64_t>{1310, 1210, 1110}));
  EXPECT_EQ(memory("gpipe", {0, 1}), (std::vector<int64_t>{1810, 1810}));
  EXPECT_EQ(memory("zb-h1", {0, 1, 2}), (std::vector<int64_t>{1310, 1310, 1310}));
  // Two stages' weights, and by families.h min(2(p-1-r) + (v-1)N + 1, m v) chunks: 5 and 3.
  EXPECT_EQ(memory("interleaved:v=2", {0, 1, 0, 1}), (std::vector<int64_t>{2510, 2310, 2510, 2310}));
  // Rank 0 of two stashes two versions of its weights of 300.
  EXPECT_EQ(predictPlan(counted(), stagesOn({0, 1}), 1, {"pipedream"}, {8})->memory_bytes,
            (std::vector<int64_t>{1510, 1110}));
  const CountedCosts costs = counted();
  EXPECT_TRUE(fitsDevices(*predictPlan(costs, stagesOn({0, 1, 2}), 8, {"1f1b"}, {}), *costs.costs));
  EXPECT_FALSE(fitsDevices(*predictPlan(costs, stagesOn({0, 1, 2, 3}), 8, {"1f1b"}, {}), *costs.costs));
}

TEST(PlanPrediction, AStepOfAnAsynchronousScheduleIsItsShareOfTheWindow) {
  // 16 updates in a pipeline that drains once: 16 (30 + 7), and the ramp of one stage.
  const int64_t step = predictPlan(counted(), stagesOn({0, 1}), 1, {"pipedream"}, {16})->step_ns;
  EXPECT_GE(step, 37);
  EXPECT_LE(step, 37 + 2 * 37 / 16 + 1);
}

TEST(PlanPrediction, ThereIsNoneWhereTheScheduleDoesNotExist) {
  EXPECT_FALSE(predictPlan(counted(), stagesOn({0, 1, 0, 1}), 4, {"zbv"}, {}));  // placed forth and back
  EXPECT_TRUE(predictPlan(counted(), stagesOn({0, 1, 1, 0}), 4, {"zbv"}, {}));
  // needs 2p microbatches
  EXPECT_FALSE(predictPlan(counted(), stagesOn({0, 1, 1, 0}), 2, {"dual-pipe-v"}, {}));
  // needs an even number of stages
  EXPECT_FALSE(predictPlan(counted(), stagesOn({0, 1, 2}), 4, parseSchedule("interleaved:v=2"), {}));
  EXPECT_ERROR(predictPlan(counted(), stagesOn({0, 1}), 4, {"magic"}, {}), ErrorCode::kUsage, "magic");
}

}  // namespace
}  // namespace pipeshard
