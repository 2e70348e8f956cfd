// verifyPrograms and printProgram: correct programs pass, and every mutation is found and named.
#include "ir/program/program.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify.h"
#include "tests/ir/program/program_writer.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

size_t positionOf(const Program& program, const std::string& text) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (describeInstruction(program, program.instructions.plain()[i]) == text) return i;
  }
  ADD_FAILURE() << "no instruction " << text;
  return 0;
}

void erase(Program& program, const std::string& text) {
  program.instructions.unrolled().erase(program.instructions.begin() +
                                        static_cast<std::ptrdiff_t>(positionOf(program, text)));
}

void insertAt(Program& program, size_t position, const Instruction& instruction) {
  program.instructions.unrolled().insert(program.instructions.begin() + position, instruction);
}

TEST(VerifyPrograms, AcceptsTwoRanksInGpipeOrder) { EXPECT_NO_THROW(verifyPrograms(twoRankPrograms())); }

TEST(VerifyPrograms, NamesTheReceiveThatTakesAnotherMessageWhenASendIsDropped) {
  auto programs = twoRankPrograms();
  erase(programs[0], "send microbatch=0 peer=1 \"h@0\"");
  EXPECT_THAT(
      verifierMessage(programs),
      AllOf(HasSubstr("rank 1, instruction 0 (receive microbatch=0 peer=0 -> \"h@0\")"), HasSubstr("\"h@1\""),
            HasSubstr("the orders of sends and receives differ, or one is missing")));
}

TEST(VerifyPrograms, NamesTheReceiveWithoutASend) {
  auto programs = twoRankPrograms();
  erase(programs[0], "send microbatch=1 peer=1 \"h@1\"");
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 1, instruction 1 (receive microbatch=1 peer=0 -> \"h@1\")"),
                    HasSubstr("rank 0 never sends it")));
}

TEST(VerifyPrograms, NamesTheSendWithoutAReceive) {
  auto programs = twoRankPrograms();
  for (const char* text : {"receive microbatch=1 peer=1 -> \"dh@1\"",
                           "run backward_weight microbatch=1 \"x@1\", \"dh@1\" -> \"dw@1\"",
                           "accumulate microbatch=1 \"dw@1\" -> \"dw\"", "free \"dh@1\"", "free \"dw@1\""}) {
    erase(programs[0], text);
  }
  // buffers that nothing writes would be found first: give them a writer
  for (const char* name : {"dh@1", "dw@1"}) {
    const auto found = std::find_if(programs[0].buffers.begin(), programs[0].buffers.end(),
                                    [&](const Buffer& b) { return b.name == name; });
    found->kind = BufferKind::kOptimizerState;
  }
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 1, instruction 13 (send microbatch=1 peer=0 \"dh@1\")"),
                    HasSubstr("rank 0 never receives it")));
}

TEST(VerifyPrograms, FindsSwappedReceivesOfEqualShape) {
  auto programs = twoRankPrograms();
  std::swap(programs[1].instructions[0], programs[1].instructions[1]);
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 1, instruction 0 (receive microbatch=1 peer=0 -> \"h@1\")"),
                    HasSubstr("message 0 on this way is \"h@0\" of rank 0, instruction 2")));
}

TEST(VerifyPrograms, FindsMessagesOfDifferentShape) {
  auto programs = twoRankPrograms();
  programs[1].buffers[1].shape = {3, 2};
  EXPECT_EQ(programs[1].buffers[1].name, "h@0");
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("it expects float32[3,2]"), HasSubstr("gives float32[2,3]")));
}

// One rank, two microbatches: each forward pass reads the state and gives the next.
std::vector<Program> statefulPrograms() {
  ProgramWriter writer(0, 1, 2);
  writer.input("x", {4, 3}, 0);
  Buffer& state = writer.program().buffers[writer.buffer("state", BufferKind::kForwardState).index()];
  state.source = WeightReference{"weights.bin", 0, 24};
  writer.subgraph("forward", Phase::kForward, {"x", "state"}, {"state_new"});
  for (int k = 0; k < 2; ++k) {
    const std::string at = "@" + std::to_string(k);
    writer.load("x" + at, k);
    writer.run(0, k, {"x" + at, "state"}, {"state_new" + at});
    writer.accumulate("state_new" + at, "state", true, k);
    writer.release("x" + at);
    writer.release("state_new" + at);
  }
  writer.result(Result::Kind::kForwardState, "state", "state");
  return {writer.program()};
}

TEST(VerifyPrograms, AcceptsAForwardStateThatIsHandedOn) {
  EXPECT_NO_THROW(verifyPrograms(statefulPrograms()));
}

TEST(VerifyPrograms, FindsAForwardStateThatTheNextMicrobatchReadsUnchanged) {
  auto programs = statefulPrograms();
  erase(programs[0], "accumulate microbatch=0 overwrite \"state_new@0\" -> \"state\"");
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("(run forward microbatch=1"), HasSubstr("\"state\", which still holds what")));
}

TEST(VerifyPrograms, FindsAForwardStateThatTheNextStepReadsUnchanged) {
  auto programs = statefulPrograms();
  erase(programs[0], "accumulate microbatch=1 overwrite \"state_new@1\" -> \"state\"");
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("buffer \"state\""), HasSubstr("nothing hands on what")));
}

TEST(VerifyPrograms, FindsADoubleFree) {
  auto programs = twoRankPrograms();
  const size_t at = positionOf(programs[0], "free \"x@0\"");
  insertAt(programs[0], at + 2, programs[0].instructions[at]);
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 0, instruction 11 (free \"x@0\")"),
                    HasSubstr("\"x@0\" was freed before by rank 0, instruction 9")));
}

TEST(VerifyPrograms, FindsAUseAfterTheFree) {
  auto programs = twoRankPrograms();
  const size_t at = positionOf(programs[0], "free \"x@0\"");
  std::swap(programs[0].instructions[at], programs[0].instructions[at - 1]);
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("(run backward_weight microbatch=0 \"x@0\", \"dh@0\" -> \"dw@0\")"),
                    HasSubstr("it uses \"x@0\" after")));
}

TEST(VerifyPrograms, FindsAMissingWrite) {
  auto programs = twoRankPrograms();
  erase(programs[0], "load_input microbatch=0 -> \"x@0\"");
  EXPECT_THAT(verifierMessage(programs), AllOf(HasSubstr("rank 0, instruction 0 (run forward"),
                                               HasSubstr("it reads \"x@0\", which nothing has written yet")));
}

TEST(VerifyPrograms, FindsAnAccumulationWithoutAFirstPart) {
  auto programs = twoRankPrograms();
  programs[0]
      .instructions[positionOf(programs[0], "accumulate microbatch=0 overwrite \"dw@0\" -> \"dw\"")]
      .overwrite = false;
  EXPECT_THAT(verifierMessage(programs), HasSubstr("it reads \"dw\", which nothing has written yet"));
}

TEST(VerifyPrograms, FindsABufferThatIsNeverFreed) {
  auto programs = twoRankPrograms();
  erase(programs[1], "free \"h@1\"");
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 1, buffer \"h@1\""), HasSubstr("it is never freed")));
}

TEST(VerifyPrograms, FindsAResultThatIsFreed) {
  auto programs = twoRankPrograms();
  ProgramWriter writer(0, 2, 2);
  writer.release("x");
  Instruction instruction = writer.program().instructions[0];
  instruction.inputs = {programs[0].results[0].buffer};
  programs[0].instructions.push_back(instruction);
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 0, buffer \"dw\""), HasSubstr("it is a result but is freed")));
}

TEST(VerifyPrograms, FindsABufferWrittenTwice) {
  auto programs = twoRankPrograms();
  insertAt(programs[0], 1, programs[0].instructions[0]);
  EXPECT_THAT(verifierMessage(programs),
              HasSubstr("it writes \"x@0\", which still holds what rank 0, instruction 0"));
}

TEST(VerifyPrograms, FindsAReceiveThatWaitsForItsOwnConsequence) {
  auto programs = twoRankPrograms();
  auto& instructions = programs[0].instructions;
  const size_t from = positionOf(programs[0], "receive microbatch=0 peer=1 -> \"dh@0\"");
  const Instruction receive = instructions[from];
  instructions.unrolled().erase(instructions.begin() + from);
  instructions.unrolled().insert(instructions.begin(), receive);
  EXPECT_THAT(verifierMessage(programs), AllOf(HasSubstr("a cycle of waits"),
                                               HasSubstr("rank 0, instruction 0 (receive microbatch=0 peer=1 "
                                                         "-> \"dh@0\") waits for a message from rank 1"),
                                               HasSubstr("rank 1, instruction 0 (receive microbatch=0 peer=0 "
                                                         "-> \"h@0\") waits for a message from rank 0"),
                                               HasSubstr("and so back to rank 0")));
}

TEST(VerifyPrograms, FindsAFreeThatWaitsForAReceiverWhichWaitsForTheRankBehindIt) {
  ProgramWriter a(0, 3, 1), b(1, 3, 1), c(2, 3, 1);
  for (ProgramWriter* writer : {&a, &b, &c}) {
    writer->input("a", {2, 3}, -1);
    writer->input("b", {2, 3}, -1);
    writer->input("c", {2, 3}, -1);
  }
  a.load("a", 0);
  a.load("b", 0);
  a.send(1, "a");
  a.release("a");
  a.send(2, "b");
  a.release("b");
  b.receive(2, "c");
  b.receive(0, "a");
  b.release("a");
  b.release("c");
  c.load("c", 0);
  c.receive(0, "b");
  c.send(1, "c");
  c.release("b");
  c.release("c");
  std::vector<Program> programs = {a.program(), b.program(), c.program()};
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 0, instruction 3 (free \"a\") waits for rank 1 to receive \"a\""),
                    HasSubstr("rank 2, instruction 1 (receive"), HasSubstr("and so back to rank 0")));
  std::swap(programs[0].instructions[3], programs[0].instructions[4]);
  EXPECT_NO_THROW(verifyPrograms(programs));
}

TEST(VerifyPrograms, FindsAnOverwriteOfASentBufferThatClosesACycle) {
  ProgramWriter a(0, 3, 1), b(1, 3, 1), c(2, 3, 1);
  for (ProgramWriter* writer : {&a, &b, &c}) {
    writer->input("x", {2, 3}, -1);
    writer->input("z", {2, 3}, -1);
  }
  a.load("x", 0);
  a.accumulate("x", "sum", true, 0);
  a.send(1, "sum");
  a.accumulate("x", "sum", false, 0);  // waits until rank 1 has "sum"
  a.send(2, "x");
  a.release("x");
  a.release("sum");
  b.receive(2, "z");
  b.receive(0, "sum");
  b.release("z");
  b.release("sum");
  c.load("z", 0);
  c.receive(0, "x");
  c.send(1, "z");
  c.release("x");
  c.release("z");
  std::vector<Program> programs = {a.program(), b.program(), c.program()};
  EXPECT_THAT(
      verifierMessage(programs),
      AllOf(
          HasSubstr(
              "rank 0, instruction 3 (accumulate microbatch=0 \"x\" -> \"sum\") waits for rank 1 to receive"),
          HasSubstr("and so back to rank 0")));
  std::swap(programs[0].instructions[3], programs[0].instructions[4]);
  EXPECT_NO_THROW(verifyPrograms(programs));
}

TEST(VerifyPrograms, FindsAWriteToAWeight) {
  auto programs = twoRankPrograms();
  programs[0].buffers[0].kind = BufferKind::kWeight;
  EXPECT_THAT(verifierMessage(programs), AllOf(HasSubstr("(update update \"w\", \"dw\", \"step\" -> \"w\")"),
                                               HasSubstr("it writes \"w\", whose kind is weight")));
}

TEST(VerifyPrograms, FindsAPeerThatDoesNotExist) {
  auto programs = twoRankPrograms();
  programs[0].instructions[2].peer = RankId(2);
  EXPECT_THAT(verifierMessage(programs), HasSubstr("there is no peer 2 of rank 0"));
}

TEST(VerifyPrograms, FindsARunWithTooFewInputs) {
  auto programs = twoRankPrograms();
  programs[0].instructions[1].inputs.pop_back();
  EXPECT_THAT(verifierMessage(programs), HasSubstr("it has 1 inputs and 1 outputs where 2 and 1 are needed"));
}

std::vector<Program> allReducePrograms() {
  std::vector<Program> programs;
  for (int rank = 0; rank < 3; ++rank) {
    ProgramWriter writer(rank, 3, 1);
    writer.input("x", {2, 3}, -1);
    writer.program().groups = {idsAt<RankId>({0, 1, 2})};
    writer.load("x", 0);
    writer.allReduce(0, "x");
    writer.allReduce(0, "x");
    writer.release("x");
    programs.push_back(writer.program());
  }
  return programs;
}

TEST(VerifyPrograms, AcceptsAllReducesInEqualOrderAndFindsAMissingOne) {
  auto programs = allReducePrograms();
  EXPECT_NO_THROW(verifyPrograms(programs));
  programs[2].instructions.unrolled().erase(programs[2].instructions.begin() + 2);
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 0, instruction 2 (all_reduce"), HasSubstr("rank 2 has finished")));
}

TEST(VerifyPrograms, FindsAnAllReduceMoreWhereverTheRankStands) {
  for (size_t longer : {size_t{0}, size_t{1}, size_t{2}}) {
    auto programs = allReducePrograms();
    insertAt(programs[longer], 1, programs[longer].instructions[1]);
    EXPECT_THAT(verifierMessage(programs), HasSubstr("has finished")) << longer;
  }
}

TEST(PrintProgram, ShowsBuffersInstructionsAndResults) {
  const std::string text = printProgram(twoRankPrograms()[0]);
  EXPECT_THAT(text, HasSubstr("program of rank 0 of 2, 2 microbatches\n"));
  EXPECT_THAT(text, HasSubstr("  \"x\": float32[4,3] cut along axis 0\n"));
  EXPECT_THAT(text, HasSubstr("  forward (forward.onnx, forward): [x, w] -> [h]\n"));
  EXPECT_THAT(text, HasSubstr("  \"w\": parameter float32[2,3] from /models/weights.bin [128, +24]\n"));
  EXPECT_THAT(text, HasSubstr("  \"x@1\": input float32[2,3] of x\n"));
  EXPECT_THAT(text, HasSubstr("     2  send microbatch=0 peer=1 \"h@0\"\n"));
  EXPECT_THAT(text, HasSubstr("     3  load_input microbatch=1 offset=2 -> \"x@1\"\n"));
  EXPECT_THAT(text, HasSubstr("accumulate microbatch=0 overwrite \"dw@0\" -> \"dw\"\n"));
  EXPECT_THAT(text, HasSubstr("  gradient w: \"dw\"\n"));
}

// Both ranks: a norm, made before the first update.
std::vector<Program> guardedPrograms() {
  auto programs = twoRankPrograms();
  for (Program& program : programs) {
    program.buffers.push_back(
        {"norm", BufferKind::kAccumulator, DataType::kFloat64, {}, "norm", std::nullopt, {}});
    program.guard = BufferId(program.buffers.size() - 1);
    Instruction zero;
    zero.kind = InstructionKind::kZero;
    zero.outputs = {program.guard};
    insertAt(program, 0, zero);
  }
  return programs;
}

TEST(VerifyPrograms, ChecksTheGuardOfAStep) {
  EXPECT_NO_THROW(verifyPrograms(guardedPrograms()));
  auto programs = guardedPrograms();
  programs[1].guard = BufferId();
  EXPECT_THAT(verifierMessage(programs), HasSubstr("it has a guard and rank 0 has none, or the reverse"));
  programs = guardedPrograms();
  programs[0].buffers.back().data_type = DataType::kFloat32;
  EXPECT_THAT(verifierMessage(programs), HasSubstr("must be a float64 scalar of one step"));
  programs = guardedPrograms();
  programs[0].guard = BufferId(1000);
  EXPECT_THAT(verifierMessage(programs), HasSubstr("the guard has no buffer"));
  programs = guardedPrograms();
  programs[0].instructions.push_back(programs[0].instructions.unrolled().front());
  EXPECT_THAT(verifierMessage(programs), HasSubstr("the guard is written behind an update"));
  programs = guardedPrograms();
  programs[0].instructions.unrolled().erase(programs[0].instructions.begin());
  EXPECT_THAT(verifierMessage(programs), HasSubstr("no instruction writes it"));
}

}  // namespace
}  // namespace pipeshard
