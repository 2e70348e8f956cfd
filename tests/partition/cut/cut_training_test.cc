// Where a backward pass is one piece, and where its halves are two.
#include "partition/cut/cut_training.h"

#include <gtest/gtest.h>

#include "partition/families/plan_schedule.h"
#include "partition/stages/partition_training.h"
#include "tests/expect_error.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

// x w0 -> h0, w1 -> h1, w2 -> h2
TrainingGraph threeLayers() {
  TrainingBuilder builder(4);
  const ValueId h0 = builder.op("h0", {builder.input("x"), builder.parameter("w0")});
  const ValueId h1 = builder.op("h1", {h0, builder.parameter("w1")});
  return builder.finish({builder.op("h2", {h1, builder.parameter("w2")})});
}

struct Chain {
  TrainingGraph training;
  Plan plan;

  explicit Chain(const std::string& schedule) : Chain(threeLayers(), {"h0", "h1"}, schedule) {}
  Chain(TrainingGraph graph, const std::vector<std::string>& boundaries, const std::string& schedule)
      : training(std::move(graph)) {
    PartitionOptions options;
    options.cluster = uniformCluster(1, static_cast<int>(boundaries.size()) + 1);
    options.boundaries = boundaries;
    options.schedule = parseSchedule(schedule);
    plan.microbatches = training.microbatches;
    partitionTraining(training, options, plan);
  }

  // By stage: which backward pieces it has: "B", "IW", "W".
  std::vector<std::string> pieces() const {
    const Cut cut = cutTraining(training, plan);
    std::vector<std::string> result;
    for (const StageId stage : cut.stages.ids()) {
      std::string& found = result.emplace_back();
      const auto note = [&](Phase phase, char letter) {
        if (!cut.piece(stage, phase).empty()) found += letter;
      };
      note(Phase::kBackward, 'B');
      note(Phase::kBackwardInput, 'I');
      note(Phase::kBackwardWeight, 'W');
    }
    return result;
  }
};

using Pieces = std::vector<std::string>;

TEST(CutTraining, HasTheBackwardPassOfTheFirstStageInOnePiece) {
  for (const char* schedule : {"1f1b", "gpipe", "sequential"})
    EXPECT_EQ(Chain(schedule).pieces(), (Pieces{"B", "IW", "IW"})) << schedule;
}

TEST(CutTraining, HasTheHalvesOfAScheduleThatSplitsThem) {
  for (const char* schedule : {"zb-h1", "zb-h2"})
    EXPECT_EQ(Chain(schedule).pieces(), (Pieces{"W", "IW", "IW"})) << schedule;
}

// Orders of a file say it themselves, whatever the schedule beside them.
TEST(CutTraining, GoesByTheOrdersThatAPlanHas) {
  Chain chain("1f1b");
  chain.plan.schedule_orders = {"0F0,0I0,0W0", "1F0,1B0", "2F0,2B0"};
  EXPECT_EQ(chain.pieces(), (Pieces{"W", "IW", "IW"}));
  chain.plan.schedule = ScheduleSpec::ofFile();
  for (const char* other : {"1F0,1B0", "1F0,1I0,1W0"}) {
    chain.plan.schedule_orders = {"0F0,0B0", other, "2F0,2B0"};
    EXPECT_EQ(chain.pieces(), (Pieces{"B", "IW", "IW"})) << other;
  }
}

TEST(CutTraining, HasHalvesWhereThereIsNoScheduleYet) {
  Chain chain("1f1b");
  chain.plan.schedule = {};
  EXPECT_EQ(chain.pieces(), (Pieces{"W", "IW", "IW"}));
}

// A stage from which no gradient goes on has one piece, wherever it stands: here none reaches the first two.
TEST(CutTraining, HasOnePieceOfAStageForWhichNobodyWaits) {
  TrainingBuilder builder(4);
  const ValueId h0 = builder.op("h0", {builder.input("x"), builder.weight("w0")});
  const ValueId h1 = builder.op("h1", {h0, builder.weight("w1")});
  const ValueId h2 = builder.op("h2", {h1, builder.parameter("w2")});
  Chain chain(builder.finish({builder.op("h3", {h2, builder.parameter("w3")})}), {"h0", "h1", "h2"}, "1f1b");
  EXPECT_EQ(chain.pieces(), (Pieces{"", "", "B", "IW"}));
}

// Statistics of an encoder that is called twice lie across each other.
TEST(CutTraining, NamesABoundaryBehindAllStatisticsThatAreUsedAcrossIt) {
  TrainingBuilder builder(4);
  std::vector<ValueId> h = {builder.input("x")}, weights;
  for (const char* name : {"0", "1", "2", "3", "4"}) {
    weights.push_back(builder.parameter(std::string("w") + name));
    h.push_back(builder.op(std::string("h") + name, {h.back(), weights.back()}));
  }
  Chain chain(builder.finish({h.back()}), {"h0"}, "1f1b");
  std::vector<ForwardState>& states = chain.training.forward_states;
  states = {{weights[0], h[3]}, {weights[1], h[4]}};  // updated by h2 and by h3
  EXPECT_ERROR(cutTraining(chain.training, chain.plan), ErrorCode::kConfiguration, "--boundary h3)");
  states.push_back({weights[3], chain.training.loss});
  EXPECT_ERROR(cutTraining(chain.training, chain.plan), ErrorCode::kConfiguration,
               "no boundary is behind them");
}

}  // namespace
}  // namespace pipeshard
