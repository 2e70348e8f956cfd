// Programs of every schedule have an order of communication (ir/program/communication_order.h), with which
// devices of any speed that have room for one message or collective at a time come to the end of the step.
#include "ir/program/communication_order.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program_verify.h"
#include "partition/emit/emit_programs.h"
#include "partition/families/make_schedule.h"
#include "partition/schedules/schedule.h"
#include "partition/stages/partition_training.h"
#include "tests/ir/program/queue_simulation.h"
#include "tests/partition/schedules/random_schedule.h"
#include "tests/partition/training_builder.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

// A node per stage, and skip connections over one.
TrainingGraph chain(int stages, int64_t microbatches) {
  TrainingBuilder builder(microbatches);
  std::vector<ValueId> made = {builder.input("x")};
  for (int s = 0; s < stages; ++s) {
    std::vector<ValueId> inputs = {made.back(), builder.parameter("w" + std::to_string(s))};
    if (s > 1) inputs.push_back(made[made.size() - 2]);
    made.push_back(builder.op("h" + std::to_string(s), inputs));
  }
  return builder.finish({made.back()});
}

std::vector<Program> programsOf(const IdVector<RankId, RankProgram>& ranks) {
  std::vector<Program> programs;
  for (const RankProgram& rank : ranks) programs.push_back(rank.program);
  return programs;
}

std::vector<Program> emitted(const std::string& schedule, int ranks, int64_t microbatches, bool overlap) {
  const int stages = ranks * chunksOf(parseSchedule(schedule));
  const TrainingGraph training = chain(stages, microbatches);
  PartitionOptions options;
  options.schedule = parseSchedule(schedule);
  options.cluster = uniformCluster(1, ranks);
  for (int s = 0; s + 1 < stages; ++s) options.boundaries.push_back("h" + std::to_string(s));
  Plan plan;
  plan.cluster = options.cluster;
  plan.given.overlap_receives = overlap ? OverlapReceives::kOn : OverlapReceives::kOff;
  partitionTraining(training, options, plan);
  return programsOf(emitOneSize(training, plan));
}

// Nothing was said: there is an order.
std::string refusal(const std::vector<Program>& programs, TransferQueues queues) {
  try {
    communicationOrder(programs, queues);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    return error.message();
  }
  return "";
}

void expectEnds(const std::vector<Program>& programs, std::mt19937& random) {
  const auto orders = communicationOrder(programs);
  verifyCommunicationOrder(programs, orders);
  EXPECT_TRUE(QueueSimulation(programs, orders).ends(random, 1));
  EXPECT_TRUE(QueueSimulation(programs, TransferQueues::kPerPair).ends(random));
}

TEST(EmittedCommunication, HasAnOrderUnderEverySchedule) {
  std::mt19937 random(1);
  int cases = 0;
  for (const ScheduleFamily& family : scheduleFamilies()) {
    if (family.asynchronous) continue;
    for (const int ranks : {2, 3, 4}) {
      for (const int microbatches : {1, 2, 4, 8}) {
        try {
          if (makeSchedule(parseSchedule(family.name), ranks, microbatches).forward_only) continue;
        } catch (const Error&) {  // it does not exist
          continue;
        }
        for (const bool overlap : {false, true}) {
          SCOPED_TRACE(family.name + " " + std::to_string(ranks) + " " + std::to_string(microbatches));
          expectEnds(emitted(family.name, ranks, microbatches, overlap), random);
          ++cases;
        }
      }
    }
  }
  EXPECT_GT(cases, 100);
}

TEST(EmittedCommunication, OfOneForwardOneBackwardNeedsMoreThanOneQueueAndThatOfGpipeDoesNot) {
  std::mt19937 random(2);
  for (const int ranks : {2, 3, 4}) {
    for (const int microbatches : {2, 4, 8}) {
      const std::vector<Program> alternating = emitted("1f1b", ranks, microbatches, false);
      EXPECT_THAT(refusal(alternating, TransferQueues::kOne), HasSubstr("waits form a circle"));
      EXPECT_FALSE(QueueSimulation(alternating, TransferQueues::kOne).ends(random));
      EXPECT_EQ(refusal(emitted("gpipe", ranks, microbatches, false), TransferQueues::kOne), "");
    }
  }
}

// Queues per pair alone are not enough where the device has room for few kernels that wait.
TEST(EmittedCommunication, InNoOrderOneKernelAtATimeDoesNotCome) {
  std::mt19937 random(3);
  QueueSimulation simulation(emitted("1f1b", 4, 8, false), TransferQueues::kPerPair);
  int hangs = 0;
  for (int k = 0; k < 50; ++k) hangs += simulation.ends(random, 1) ? 0 : 1;
  EXPECT_GT(hangs, 0);
}

TEST(EmittedCommunication, OfRandomSchedulesIsJudgedAsQueuesBehave) {
  int one_queue = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const TrainingGraph training = chain(2 + static_cast<int>(random() % 5), 1 + random() % 4);
    Plan plan;
    PartitionOptions options;
    options.schedule = parseSchedule("1f1b");
    const size_t forward =
        std::count(training.node_phase.begin(), training.node_phase.end(), Phase::kForward);
    options.cluster = plan.cluster = uniformCluster(1, static_cast<int>(forward));
    for (size_t s = 0; s + 1 < forward; ++s) options.boundaries.push_back("h" + std::to_string(s));
    partitionTraining(training, options, plan);
    const Schedule schedule =
        randomSchedule(plan.stages.size(), 1 + static_cast<int>(random() % 4), training.microbatches, random);
    for (const StageId s : schedule.rank_of_stage.ids())
      plan.stages[s].devices = {RankId(schedule.rank_of_stage[s].index())};
    const std::vector<Program> programs =
        programsOf(emitForSchedule(TrainingFamily(training), plan, schedule));
    SCOPED_TRACE(seed);
    expectEnds(programs, random);
    const std::string said = refusal(programs, TransferQueues::kOne);
    EXPECT_EQ(QueueSimulation(programs, TransferQueues::kOne).ends(random), said.empty()) << said;
    one_queue += said.empty() ? 1 : 0;
  }
  EXPECT_GT(one_queue, 10);
  EXPECT_LT(one_queue, 290);
}

TEST(EmittedCommunication, ThatIsSwappedIsRefused) {
  std::vector<Program> programs = emitted("1f1b", 3, 4, false);
  std::vector<Instruction>& instructions = programs[0].instructions.unrolled();
  std::vector<size_t> sends;
  for (size_t i = 0; i < instructions.size(); ++i) {
    if (instructions[i].kind == InstructionKind::kSend && instructions[i].peer == RankId(1))
      sends.push_back(i);
  }
  // Two sends of one way: what comes is not what is awaited.
  std::swap(instructions[sends[0]], instructions[sends[1]]);
  EXPECT_THROW(verifySample(programs), Error);
  std::swap(instructions[sends[0]], instructions[sends[1]]);
  // A send behind the receive that waits for it.
  for (size_t at = sends[0]; at + 1 < instructions.size(); ++at)
    std::swap(instructions[at], instructions[at + 1]);
  EXPECT_THAT(refusal(programs, TransferQueues::kPerPair), HasSubstr("waits form a circle"));
}

}  // namespace
}  // namespace pipeshard
