// Orders of communication: which programs have one, and that devices that follow it never wait in a circle.
#include "ir/program/communication_order.h"

#include <algorithm>
#include <functional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/program/program_verify.h"
#include "tests/expect_error.h"
#include "tests/ir/program/program_writer.h"
#include "tests/ir/program/queue_simulation.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration) << error.message();
    return error.message();
  }
  return "";
}
std::string refusal(const std::vector<Program>& programs, TransferQueues queues) {
  return refusal([&] { communicationOrder(programs, queues); });
}

// Two stages, two microbatches, one forward and one backward pass in turn.
std::vector<Program> oneForwardOneBackward() {
  ProgramWriter first(0, 2, 2), second(1, 2, 2);
  for (ProgramWriter* writer : {&first, &second}) {
    writer->subgraph("forward", Phase::kForward, {}, {"y"});
    writer->subgraph("backward", Phase::kBackwardInput, {}, {"dy"});
  }
  for (const std::string y : {"y@0", "y@1"}) {
    first.run(0, 0, {}, {y});
    first.send(1, y);
  }
  for (const std::string k : {"@0", "@1"}) {
    first.receive(1, "dy" + k);
    first.release("y" + k);
    second.receive(0, "y" + k);
    second.run(1, 0, {"y" + k}, {"dy" + k});
    second.send(0, "dy" + k);
  }
  return {first.program(), second.program()};
}

TEST(CommunicationOrder, OfOneForwardOneBackwardLetsNoSendBeforeTheReceiveThatItsPeerStandsAt) {
  const auto orders = communicationOrder(oneForwardOneBackward());
  // y@0, dy@0, y@1, dy@1, on both ranks
  EXPECT_THAT(orders[0], ElementsAre(CommunicationStep{1, 0}, CommunicationStep{4, 0},
                                     CommunicationStep{3, 0}, CommunicationStep{6, 0}));
  EXPECT_THAT(orders[1], ElementsAre(CommunicationStep{0, 0}, CommunicationStep{2, 0},
                                     CommunicationStep{3, 0}, CommunicationStep{5, 0}));
}

TEST(CommunicationOrder, OneQueueForTransfersIsRefusedWithTheCircle) {
  EXPECT_THAT(
      refusal(oneForwardOneBackward(), TransferQueues::kOne),
      AllOf(HasSubstr("waits form a circle"), HasSubstr("rank 0, instruction 3 (send peer=1 \"y@1\")"),
            HasSubstr("rank 1, instruction 2 (send peer=0 \"dy@0\")"),
            HasSubstr("and that for the first of these")));
}

TEST(CommunicationOrder, ThatIsGivenIsProvenOrRefused) {
  const std::vector<Program> programs = oneForwardOneBackward();
  auto orders = communicationOrder(programs);
  EXPECT_EQ(refusal([&] { verifyCommunicationOrder(programs, orders); }), "");
  std::swap(orders[0][1], orders[0][2]);
  EXPECT_THAT(refusal([&] { verifyCommunicationOrder(programs, orders); }), HasSubstr("circle"));
  orders[0].pop_back();
  EXPECT_ERROR(verifyCommunicationOrder(programs, orders), ErrorCode::kInternal, "missing");
}

TEST(CommunicationOrder, CollectivesThatRanksDoInDifferentOrdersAreRefused) {
  std::vector<Program> programs;
  for (int rank = 0; rank < 3; ++rank) {
    ProgramWriter writer(rank, 3, 1);
    writer.program().groups = {idsAt<RankId>({0, 1, 2})};
    if (rank < 2) writer.program().groups.push_back(idsAt<RankId>({0, 1}));
    writer.zero("a");
    writer.zero("b");
    if (rank == 1) writer.allReduce(1, "b");
    writer.allReduce(0, "a");
    if (rank == 0) writer.allReduce(1, "b");
    programs.push_back(writer.program());
  }
  EXPECT_THAT(
      refusal(programs, TransferQueues::kPerPair),
      AllOf(HasSubstr("circle"), HasSubstr("the collective of rank 0, instruction 2 (all_reduce group=0"),
            HasSubstr("instruction 3 (all_reduce group=0")));
}

TEST(CommunicationOrder, AMessageWithoutCounterpartAndAMemberThatNeverComesAreRefused) {
  std::vector<Program> programs = oneForwardOneBackward();
  programs[1].instructions.unrolled().pop_back();
  EXPECT_THAT(refusal(programs, TransferQueues::kPerPair), HasSubstr("rank 1 has no counterpart to it"));
  ProgramWriter alone(0, 2, 1), other(1, 2, 1);
  alone.program().groups = {idsAt<RankId>({0, 1})};
  alone.zero("a");
  alone.allReduce(0, "a");
  EXPECT_THAT(refusal({alone.program(), other.program()}, TransferQueues::kPerPair),
              HasSubstr("of the 2 ranks of its collective 1 never come"));
}

// "part" is computed in "acc", which rank 1 takes when rank 2 has got what comes behind it.
TEST(CommunicationOrder, SendsAreAwaitedByWhatWritesTheirMemory) {
  ProgramWriter first(0, 3, 1), second(1, 3, 1), third(2, 3, 1);
  first.zero("acc");
  first.send(1, "acc");
  first.zero("part");
  first.send(2, "b");
  second.receive(2, "c");
  second.receive(0, "acc");
  third.receive(0, "b");
  third.send(1, "c");
  const std::vector<Program> programs = {first.program(), second.program(), third.program()};
  EXPECT_EQ(refusal(programs, TransferQueues::kPerPair), "");
  BufferPlaces places = {idsAt<BufferId>({0, 0, 2}), idsAt<BufferId>({0, 1}), idsAt<BufferId>({0, 1})};
  EXPECT_THAT(refusal([&] { communicationOrder(programs, TransferQueues::kPerPair, places); }),
              AllOf(HasSubstr("the message of rank 0, instruction 1 (send peer=1 \"acc\")"),
                    HasSubstr("that waits for rank 0, instruction 2 (zero -> \"part\"); and")));
}

// --- random programs

// What ranks do together, in one order of all.
struct Together {
  std::vector<int> ranks;  // of a message: sender and receiver
  bool is_message = false;
  bool background = false;
  int number = 0;
  bool mayNotPass(const Together& other) const {
    return is_message == other.is_message && ranks == other.ranks && background == other.background;
  }
};

std::vector<Together> randomSteps(int ranks, std::mt19937& random) {
  std::vector<Together> steps;
  for (int n = 2 + static_cast<int>(random() % 12); n > 0; --n) {
    Together step;
    step.number = n;
    step.is_message = random() % 3 > 0;
    std::vector<int> all(ranks);
    for (int r = 0; r < ranks; ++r) all[r] = r;
    std::shuffle(all.begin(), all.end(), random);
    all.resize(step.is_message ? 2 : 2 + random() % (ranks - 1));
    if (!step.is_message) std::sort(all.begin(), all.end());
    step.background = !step.is_message && random() % 2;
    step.ranks = std::move(all);
    steps.push_back(std::move(step));
  }
  return steps;
}

Program randomProgram(int rank, int ranks, std::vector<Together> steps, std::mt19937& random) {
  for (int swaps = static_cast<int>(random() % 4); swaps > 0 && steps.size() > 1; --swaps) {
    const size_t at = random() % (steps.size() - 1);
    if (!steps[at].mayNotPass(steps[at + 1])) std::swap(steps[at], steps[at + 1]);
  }
  ProgramWriter writer(rank, ranks, 1);
  std::vector<std::string> held;
  for (const Together& step : steps) {
    if (std::find(step.ranks.begin(), step.ranks.end(), rank) == step.ranks.end()) continue;
    const std::string name = "t" + std::to_string(step.number);
    if (step.is_message && step.ranks[1] == rank) {
      writer.receive(step.ranks[0], name);
      if (random() % 3 == 0) writer.inBackground();
    } else {
      writer.zero(name);
      if (step.is_message) {
        writer.send(step.ranks[1], name);
      } else {
        writer.program().groups.push_back(idsAt<RankId>(step.ranks));
        writer.allReduce(writer.program().groups.size() - 1, name);
        if (step.background) writer.inBackground();
      }
    }
    held.push_back(name);
    while (!held.empty() && random() % 3 == 0) {
      const size_t which = random() % held.size();
      random() % 2 ? writer.release(held[which]) : writer.zero(held[which]);
      held.erase(held.begin() + which);
    }
  }
  return writer.program();
}

TEST(CommunicationOrder, IsThereWhereQueuesOfAnySpeedComeToTheirEnd) {
  int accepted = 0, refused = 0, only_one_queue = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    const int ranks = 2 + static_cast<int>(random() % 3);
    const std::vector<Together> steps = randomSteps(ranks, random);
    std::vector<Program> programs;
    for (int r = 0; r < ranks; ++r) programs.push_back(randomProgram(r, ranks, steps, random));
    std::string said[2];
    for (const TransferQueues queues : {TransferQueues::kPerPair, TransferQueues::kOne}) {
      std::string& text = said[queues == TransferQueues::kOne ? 1 : 0];
      text = refusal(programs, queues);
      ASSERT_EQ(QueueSimulation(programs, queues).ends(random), text.empty())
          << "seed " << seed << ": " << text;
    }
    ++(said[0].empty() ? accepted : refused);
    only_one_queue += said[0].empty() && !said[1].empty() ? 1 : 0;
    if (!said[0].empty()) continue;
    const auto orders = communicationOrder(programs);
    ASSERT_EQ(refusal([&] { verifyCommunicationOrder(programs, orders); }), "") << "seed " << seed;
    QueueSimulation in_order(programs, orders);
    for (int k = 0; k < 3; ++k) ASSERT_TRUE(in_order.ends(random, 1)) << "seed " << seed;
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 500);
  EXPECT_GT(only_one_queue, 100);
}

}  // namespace
}  // namespace pipeshard
