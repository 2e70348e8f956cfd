// Background instructions: what waits for them, and what the verifier makes of them between ranks.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/program/background.h"
#include "ir/program/program_json.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify.h"
#include "tests/ir/program/program_writer.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The example of ir/program/background.h: two gradients, each summed as soon as it is there.
ProgramWriter bucketWriter(int rank) {
  ProgramWriter writer(rank, 2, 1);
  writer.program().groups = {idsAt<RankId>({0, 1})};
  for (const char* name : {"a", "b"}) writer.parameter(name);
  for (const char* name : {"da", "db"}) writer.buffer(name, BufferKind::kGradient);
  writer.input("x", {2, 3}, 0);
  writer.subgraph("backward_1", Phase::kBackwardWeight, {"x"}, {"da"});
  writer.subgraph("backward_2", Phase::kBackwardWeight, {"x"}, {"db"});
  writer.subgraph("update", Phase::kUpdate, {"w", "dw"}, {"w_new"});
  return writer;
}

Program bucketProgram(int rank, bool in_background = true) {
  ProgramWriter writer = bucketWriter(rank);
  writer.load("x@0", 0);
  for (const char* name : {"a", "b"}) {
    const std::string gradient = std::string("d") + name;
    writer.run(name[0] == 'a' ? 0 : 1, 0, {"x@0"}, {gradient});
    writer.allReduce(0, gradient);
    if (in_background) writer.inBackground();
  }
  writer.release("x@0");
  for (const std::string name : {"a", "b"}) writer.update(2, {name, "d" + name}, {name});
  for (const std::string name : {"a", "b"}) writer.result(Result::Kind::kGradient, name, "d" + name);
  if (rank > 0) writer.program().results.clear();
  for (const std::string name : {"a", "b"}) {
    if (rank == 0) writer.result(Result::Kind::kParameter, name, name);
  }
  if (rank > 0) {
    writer.release("da");
    writer.release("db");
  }
  return writer.program();
}

std::vector<Program> bucketPrograms() { return {bucketProgram(0), bucketProgram(1)}; }

TEST(BackgroundWaits, AreForWhatTouchesTheSameBuffers) {
  const BackgroundWaits waits = backgroundWaits(bucketProgram(0));
  EXPECT_THAT(waits.lane, ElementsAre(2, 4));
  EXPECT_THAT(waits.before, ElementsAre(0, 0, 0, 0, 0, 0, 1, 2, 2));
}

TEST(BackgroundWaits, OfReadersOnlyConcernWhoWritesOrFrees) {
  ProgramWriter writer(0, 2, 1);
  writer.program().groups = {idsAt<RankId>({0, 1})};
  writer.subgraph("scatter", Phase::kUpdate, {"whole"}, {"part"}, {0});
  writer.subgraph("read", Phase::kForward, {"whole"}, {"other"});
  writer.zero("whole");
  writer.run(0, -1, {"whole"}, {"part"});
  writer.inBackground();
  writer.run(1, 0, {"whole"}, {"other"});          // reads what is read
  writer.accumulate("other", "whole", false, -1);  // writes it
  writer.release("whole");
  writer.release("part");
  EXPECT_THAT(backgroundWaits(writer.program()).before, ElementsAre(0, 0, 0, 1, 1, 1, 1));
}

TEST(BackgroundWaits, SeeBuffersThatShareMemory) {
  ProgramWriter writer(0, 2, 1);
  writer.program().groups = {idsAt<RankId>({0, 1})};
  const BufferId part = writer.buffer("part"), total = writer.buffer("total");
  writer.zero("total");
  writer.allReduce(0, "total");
  writer.inBackground();
  writer.zero("part");
  EXPECT_THAT(backgroundWaits(writer.program()).before, ElementsAre(0, 0, 0, 1));
  const auto place = [&](BufferId id) { return id == part ? total : id; };
  EXPECT_THAT(backgroundWaits(writer.program(), place).before, ElementsAre(0, 0, 1, 1));
}

TEST(BackgroundWaits, OfReceivesAreAtTheFirstUseOrWhereALaterMessageFromThatPeerIsAwaited) {
  ProgramWriter writer(0, 3, 1);
  for (const std::string name : {"a", "b", "c", "d"}) {
    writer.receive(name == "c" ? 2 : 1, name);
    if (name != "b") writer.inBackground();
  }
  writer.send(1, "c");
  writer.release("c");
  const BackgroundWaits waits = backgroundWaits(writer.program());
  EXPECT_THAT(waits.lane, IsEmpty());
  EXPECT_THAT(waits.receives, ElementsAre(IsEmpty(), ElementsAre(0), IsEmpty(), IsEmpty(), ElementsAre(2),
                                          IsEmpty(), ElementsAre(3)));
}

TEST(BackgroundWaits, OfSeveralReceivesFromAPeerGoInTheirOrder) {
  ProgramWriter writer(0, 3, 1);
  for (const std::string name : {"a", "b", "c", "d"}) {
    writer.receive(name == "b" ? 2 : 1, name);
    writer.inBackground();
  }
  writer.release("c");  // so "a" has come, too
  writer.release("a");
  writer.receive(1, "e");
  EXPECT_THAT(backgroundWaits(writer.program()).receives,
              ElementsAre(IsEmpty(), IsEmpty(), IsEmpty(), IsEmpty(), ElementsAre(0, 2), IsEmpty(),
                          ElementsAre(3), ElementsAre(1)));
}

TEST(BackgroundGroups, AreThoseOfTheLane) {
  Program program = bucketProgram(0);
  EXPECT_THAT(backgroundGroups(program), ElementsAre(idsAt<RankId>({0, 1})));
  EXPECT_THAT(backgroundGroups(bucketProgram(0, false)), IsEmpty());
}

TEST(VerifyBackground, AcceptsBuckets) { EXPECT_NO_THROW(verifyPrograms(bucketPrograms())); }

TEST(VerifyBackground, IsPrintedAndKept) {
  const Program program = bucketProgram(0);
  EXPECT_THAT(printProgram(program), HasSubstr("all_reduce background group=0 \"da\" -> \"da\""));
  EXPECT_EQ(printProgram(programFromJson(programToJson(program))), printProgram(program));
}

TEST(VerifyBackground, RefusesOtherKinds) {
  auto programs = bucketPrograms();
  programs[0].instructions[1].background = true;
  EXPECT_THAT(verifierMessage(programs), AllOf(HasSubstr("rank 0, instruction 1 (run backward_1 background"),
                                               HasSubstr("only receives and collectives")));
}

TEST(VerifyBackground, RefusesASubgraphThatRunsInBothThreads) {
  ProgramWriter writer(0, 2, 1);
  writer.program().groups = {idsAt<RankId>({0, 1})};
  writer.subgraph("scatter", Phase::kUpdate, {"whole"}, {"part"}, {0});
  writer.zero("whole");
  for (const char* name : {"part", "again"}) writer.run(0, -1, {"whole"}, {name});
  writer.inBackground();
  Program other = writer.program();
  other.rank = RankId(1);
  EXPECT_THAT(verifierMessage({writer.program(), other}),
              AllOf(HasSubstr("instruction 2 (run scatter background"),
                    HasSubstr("its subgraph runs elsewhere, too")));
}

TEST(VerifyBackground, FindsSwappedBuckets) {
  auto programs = bucketPrograms();
  std::swap(programs[1].instructions[2], programs[1].instructions[4]);
  EXPECT_THAT(verifierMessage(programs), HasSubstr("it reads \"db\", which nothing has written yet"));
  programs = bucketPrograms();
  std::swap(programs[1].instructions[1], programs[1].instructions[3]);
  std::swap(programs[1].instructions[2], programs[1].instructions[4]);
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("(all_reduce background group=0 \"da\" -> \"da\")"), HasSubstr("it meets rank"),
                    HasSubstr("which is about another tensor")));
}

TEST(VerifyBackground, FindsABucketThatOnlySomeRanksSumInTheBackground) {
  auto programs = bucketPrograms();
  programs[1].instructions[2].background = false;
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("a cycle of waits"), HasSubstr("to reach the all_reduce")));
}

TEST(VerifyBackground, FindsADroppedBucket) {
  auto programs = bucketPrograms();
  programs[1].instructions.unrolled().erase(programs[1].instructions.begin() + 4);
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 0, instruction 4 (all_reduce background group=0 \"db\" -> \"db\") waits"),
                    HasSubstr("rank 1 to post the all_reduce"), HasSubstr("rank 1 has finished")));
}

// Rank 0 sends "h" to rank 1, which sums before or after it receives it.
std::vector<Program> sumAndMessage(bool in_background, bool reads_sum_first) {
  std::vector<Program> programs;
  for (const int rank : {0, 1}) {
    ProgramWriter writer(rank, 2, 1);
    writer.program().groups = {idsAt<RankId>({0, 1})};
    writer.buffer("sum", BufferKind::kGradient);
    writer.zero("sum");
    const auto sum = [&] {
      writer.allReduce(0, "sum");
      if (in_background) writer.inBackground();
    };
    if (rank == 0) {
      sum();
      if (reads_sum_first) {
        writer.accumulate("sum", "h", true, -1);
      } else {
        writer.zero("h");
      }
      writer.send(1, "h");
      writer.release("h");
      writer.result(Result::Kind::kGradient, "sum", "sum");
    } else {
      writer.receive(0, "h");
      sum();
      writer.release("h");
      writer.release("sum");
    }
    programs.push_back(writer.program());
  }
  return programs;
}

TEST(VerifyBackground, LetsTheThreadGoOnWhereItWouldDeadlockOtherwise) {
  EXPECT_NO_THROW(verifyPrograms(sumAndMessage(true, false)));
  EXPECT_THAT(verifierMessage(sumAndMessage(false, false)), HasSubstr("a cycle of waits"));
}

TEST(VerifyBackground, FindsAWaitForTheLaneThatNobodyCanEnd) {
  EXPECT_THAT(verifierMessage(sumAndMessage(true, true)),
              AllOf(HasSubstr("a cycle of waits"),
                    HasSubstr("(accumulate overwrite \"sum\" -> \"h\") waits for its all_reduce background"),
                    HasSubstr("waits for rank 1 to post the all_reduce"),
                    HasSubstr("waits for a message from rank 0"), HasSubstr("and so back to rank 0")));
}

// Rank 0 sends "x", frees it and sends "q" to rank 2; rank 2 answers rank 1 with "y". Rank 1 takes "x" first,
// or only after "y".
std::vector<Program> postedReceive(bool in_background) {
  std::vector<ProgramWriter> writers;
  for (int rank = 0; rank < 3; ++rank) writers.emplace_back(rank, 3, 1);
  for (const char* name : {"x", "q"}) {
    writers[0].zero(name);
    writers[0].send(name[0] == 'x' ? 1 : 2, name);
    writers[0].release(name);
  }
  writers[1].receive(0, "x");
  if (in_background) writers[1].inBackground();
  writers[1].receive(2, "y");
  for (const char* name : {"x", "y"}) writers[1].release(name);
  writers[2].receive(0, "q");
  writers[2].zero("y");
  writers[2].send(1, "y");
  for (const char* name : {"q", "y"}) writers[2].release(name);
  return {writers[0].program(), writers[1].program(), writers[2].program()};
}

TEST(VerifyBackground, CountsAPostedReceiveOnlyWhenSomethingWaitsForIt) {
  EXPECT_NO_THROW(verifyPrograms(postedReceive(false)));
  EXPECT_THAT(verifierMessage(postedReceive(true)),
              AllOf(HasSubstr("a cycle of waits"),
                    HasSubstr("rank 0, instruction 2 (free \"x\") waits for rank 1 to receive \"x\"")));
}

TEST(VerifyBackground, AcceptsReceivesThatArePostedAhead) {
  auto programs = twoRankPrograms();
  for (Program& program : programs) {
    for (Instruction& instruction : program.instructions)
      instruction.background = instruction.kind == InstructionKind::kReceive;
  }
  EXPECT_NO_THROW(verifyPrograms(programs));
  std::swap(programs[1].instructions[0], programs[1].instructions[1]);
  EXPECT_THAT(verifierMessage(programs), HasSubstr("message 0 on this way is \"h@0\""));
}

}  // namespace
}  // namespace pipeshard
