// verifyPrograms and printProgram: rows of microbatches, slices, concatenations, forward states, collectives
// inside subgraphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify.h"
#include "tests/ir/program/program_writer.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two uneven microbatches of "x" [5,3]; the second is cut in two and put together again; "mean" is replaced
// by a sum.
ProgramWriter rowsProgram() {
  ProgramWriter writer(0, 1, 2);
  writer.input("x", {5, 3}, 0);
  writer.buffer("x@0", BufferKind::kInput, {2, 3});
  writer.buffer("x@1", BufferKind::kInput, {3, 3});
  writer.buffer("top", BufferKind::kActivation, {1, 3});
  writer.buffer("bottom", BufferKind::kActivation, {2, 3});
  writer.buffer("whole", BufferKind::kActivation, {3, 3});
  writer.program().buffers[writer.parameter("mean").index()].kind = BufferKind::kForwardState;
  writer.load("x@0", 0);
  writer.load("x@1", 1, 2);
  writer.slice("x@1", "top", 0, 0);
  writer.slice("x@1", "bottom", 0, 1);
  writer.concatenate({"top", "bottom"}, "whole", 0);
  writer.zero("total");
  writer.accumulate("bottom", "total", false, 1);
  writer.accumulate("total", "mean", true, -1);
  for (const char* name : {"x@0", "x@1", "top", "bottom", "whole", "total"}) writer.release(name);
  writer.result(Result::Kind::kForwardState, "mean", "mean");
  return writer;
}

// The message after one change of rowsProgram().
template <typename Change>
std::string messageAfter(Change change) {
  Program program = rowsProgram().program();
  change(program);
  return verifierMessage({program});
}

Shape& shapeOf(Program& program, const std::string& name) {
  for (Buffer& buffer : program.buffers) {
    if (buffer.name == name) return buffer.shape;
  }
  ADD_FAILURE() << name;
  return program.buffers[0].shape;
}

TEST(VerifyRows, AcceptsUnevenMicrobatchesSlicesAndConcatenations) {
  EXPECT_NO_THROW(verifyPrograms({rowsProgram().program()}));
}

TEST(VerifyRows, FindsARangeOutsideOfTheBatch) {
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[1].offset = 3; }),
              AllOf(HasSubstr("instruction 1 (load_input microbatch=1 offset=3"),
                    HasSubstr("\"x@1\" (float32[3,3]) from 3 on is no part of float32[5,3]")));
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[1].offset = -1; }),
              HasSubstr("from -1 on is no part of"));
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[1].offset = INT64_MAX; }),
              HasSubstr("is no part of"));
}

TEST(VerifyRows, FindsRowsOfTheWrongShapeOrType) {
  EXPECT_THAT(messageAfter([](Program& p) {
                shapeOf(p, "x@0") = {2, 4};
              }),
              HasSubstr("\"x@0\" (float32[2,4]) from 0 on"));
  EXPECT_THAT(messageAfter([](Program& p) { shapeOf(p, "x@0") = {2}; }),
              HasSubstr("\"x@0\" (float32[2]) from 0 on"));
  EXPECT_THAT(messageAfter([](Program& p) { p.buffers[0].data_type = DataType::kFloat64; }),
              HasSubstr("\"x@0\" (float64[2,3]) from 0 on"));
}

TEST(VerifyRows, FindsAnOffsetIntoAnInputThatIsNotCut) {
  ProgramWriter writer(0, 1, 1);
  writer.input("x", {2, 3}, -1);
  writer.load("x", 0, 1);
  writer.release("x");
  EXPECT_THAT(verifierMessage({writer.program()}), HasSubstr("from 1 on is no part of float32[2,3]"));
  writer.program().instructions[0].offset = 0;
  EXPECT_NO_THROW(verifyPrograms({writer.program()}));
}

TEST(VerifyRows, FindsASliceOutsideOfItsInput) {
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[3].offset = 2; }),
              AllOf(HasSubstr("instruction 3 (slice axis=0 offset=2 \"x@1\" -> \"bottom\")"),
                    HasSubstr("from 2 on is no part of \"x@1\"")));
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[3].axis = -1; }), HasSubstr("is no part of"));
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[3].axis = 2; }), HasSubstr("is no part of"));
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[3].axis = 1; }), HasSubstr("is no part of"));
}

TEST(VerifyRows, FindsAConcatenationThatDoesNotFillItsOutput) {
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[4].inputs.pop_back(); }),
              AllOf(HasSubstr("(concatenate axis=0 \"top\" -> \"whole\")"),
                    HasSubstr("its inputs fill 1 of \"whole\"")));
  EXPECT_THAT(
      messageAfter([](Program& p) { p.instructions[4].inputs.push_back(p.instructions[4].inputs[0]); }),
      HasSubstr("\"top\" (float32[1,3]) from 3 on is no part of \"whole\""));
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[4].inputs.clear(); }),
              HasSubstr("it has 0 inputs and 1 outputs"));
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[4].axis = -1; }), HasSubstr("is no part of"));
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[4].axis = 1; }), HasSubstr("is no part of"));
}

TEST(VerifyRows, FindsAZeroOfABufferInUse) {
  EXPECT_THAT(messageAfter([](Program& p) {
                p.instructions.unrolled().insert(p.instructions.begin() + 7, p.instructions[5]);
              }),
              AllOf(HasSubstr("instruction 7 (zero -> \"total\")"), HasSubstr("which still holds what")));
}

TEST(VerifyRows, LetsNothingButAnOverwriteReplaceAForwardState) {
  EXPECT_THAT(messageAfter([](Program& p) { p.instructions[7].overwrite = false; }),
              HasSubstr("it writes \"mean\", whose kind is forward_state"));
  EXPECT_THAT(messageAfter([](Program& p) { p.buffers[5].kind = BufferKind::kParameter; }),
              HasSubstr("it writes \"mean\", whose kind is parameter"));
  EXPECT_THAT(messageAfter([](Program& p) { p.buffers[5].source.reset(); }),
              HasSubstr("of kind forward_state needs a source"));
}

TEST(PrintProgram, ShowsRowsAndCollectives) {
  ProgramWriter writer = rowsProgram();
  writer.program().groups = {idsAt<RankId>({0})};
  writer.subgraph("forward", Phase::kForward, {"x"}, {"y"}, {0, 0});
  const std::string text = printProgram(writer.program());
  EXPECT_THAT(text, HasSubstr("     1  load_input microbatch=1 offset=2 -> \"x@1\"\n"));
  EXPECT_THAT(text, HasSubstr("     3  slice axis=0 offset=1 \"x@1\" -> \"bottom\"\n"));
  EXPECT_THAT(text, HasSubstr("     4  concatenate axis=0 \"top\", \"bottom\" -> \"whole\"\n"));
  EXPECT_THAT(text, HasSubstr("     5  zero -> \"total\"\n"));
  EXPECT_THAT(text, HasSubstr("  forward (forward.onnx, forward): [x] -> [y] collectives over groups 0,0\n"));
  EXPECT_THAT(text,
              HasSubstr("  \"mean\": forward_state float32[2,3] from /models/weights.bin [128, +24]\n"));
  EXPECT_THAT(text, HasSubstr("  forward_state mean: \"mean\"\n"));
}

// `ranks` ranks run the subgraph "forward" (its collectives: twice over all ranks) for each of two
// microbatches.
std::vector<ProgramWriter> collectivePrograms(int ranks) {
  const std::vector<RankId> all = idsBelow<RankId>(ranks);
  std::vector<ProgramWriter> writers;
  for (int rank = 0; rank < ranks; ++rank) {
    ProgramWriter& writer = writers.emplace_back(rank, ranks, 2);
    writer.input("x", {2, 3}, -1);
    writer.program().groups = {all};
    writer.subgraph("forward", Phase::kForward, {"x"}, {"y"}, {0, 0});
    for (int k = 0; k < 2; ++k) {
      const std::string at = "@" + std::to_string(k);
      writer.load("x" + at, k);
      writer.run(0, k, {"x" + at}, {"y" + at});
      writer.release("x" + at);
      writer.release("y" + at);
    }
  }
  return writers;
}

std::vector<Program> programsOf(std::vector<ProgramWriter> writers) {
  std::vector<Program> programs;
  for (ProgramWriter& writer : writers) programs.push_back(writer.program());
  return programs;
}

TEST(VerifyCollectives, AcceptsMembersThatMeet) {
  EXPECT_NO_THROW(verifyPrograms(programsOf(collectivePrograms(3))));
}

TEST(VerifyCollectives, FindsAGroupThatDoesNotExist) {
  auto programs = programsOf(collectivePrograms(2));
  programs[1].subgraphs[0].collectives = idsAt<GroupId>({0, 1});
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 1"), HasSubstr("subgraph \"forward\": there is no group 1")));
}

TEST(VerifyCollectives, FindsAMemberThatNeverArrives) {
  auto programs = programsOf(collectivePrograms(3));
  auto& instructions = programs[2].instructions;
  instructions.unrolled().erase(instructions.begin() + 4, instructions.end());
  // what nothing writes any more is found before: let it live across steps
  for (Buffer& buffer : programs[2].buffers) {
    if (buffer.name.ends_with("@1")) buffer.kind = BufferKind::kOptimizerState;
  }
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("rank 0, instruction 5 (run forward microbatch=1"),
                    HasSubstr("waits for rank 2 to reach a collective"), HasSubstr("rank 2 has finished")));
}

TEST(VerifyCollectives, FindsAMemberWithOneCollectiveFewer) {
  for (size_t shorter : {size_t{0}, size_t{1}, size_t{2}}) {
    auto programs = programsOf(collectivePrograms(3));
    programs[shorter].subgraphs[0].collectives = idsAt<GroupId>({0});
    EXPECT_THAT(verifierMessage(programs), HasSubstr("orders of collectives differ")) << shorter;
    for (Program& program : programs) program.instructions.unrolled().resize(4);
    for (Program& program : programs) program.buffers.unrolled().resize(2);
    EXPECT_THAT(verifierMessage(programs), AllOf(HasSubstr("a cycle of waits"),
                                                 HasSubstr(fmt::format("rank {} has finished", shorter))));
  }
}

TEST(VerifyCollectives, FindsMembersThatTakeMicrobatchesInDifferentOrders) {
  auto programs = programsOf(collectivePrograms(2));
  auto& instructions = programs[1].instructions;
  std::rotate(instructions.begin(), instructions.begin() + 4, instructions.end());
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("(run forward microbatch=0"), HasSubstr("(run forward microbatch=1"),
                    HasSubstr("the orders of collectives differ")));
}

TEST(VerifyCollectives, FindsPhasesThatMeet) {
  auto programs = programsOf(collectivePrograms(2));
  programs[1].subgraphs[0].phase = Phase::kBackwardInput;
  EXPECT_THAT(verifierMessage(programs), HasSubstr("the orders of collectives differ"));
}

TEST(VerifyCollectives, FindsAnAllReduceThatMeetsACollectiveOfASubgraph) {
  auto writers = collectivePrograms(2);
  for (ProgramWriter& writer : writers) writer.program().subgraphs[0].collectives = idsAt<GroupId>({0});
  Program& program = writers[1].program();
  Instruction instruction = program.instructions[1];
  instruction.kind = InstructionKind::kAllReduce;
  instruction.subgraph = SubgraphId();
  instruction.group = GroupId(0);
  program.instructions[1] = instruction;
  EXPECT_THAT(verifierMessage(programsOf(writers)), HasSubstr("the orders of collectives differ"));
}

TEST(VerifyCollectives, FindsGroupsThatAreEnteredInDifferentOrders) {
  auto programs = programsOf(collectivePrograms(3));
  for (Program& program : programs)
    program.groups = {idsAt<RankId>({0, 1, 2}), idsBelow<RankId>(program.rank == RankId(2) ? 3 : 2)};
  programs[0].subgraphs[0].collectives = idsAt<GroupId>({1, 0});
  programs[1].subgraphs[0].collectives = idsAt<GroupId>({0, 1});
  programs[2].subgraphs[0].collectives = idsAt<GroupId>({0});
  EXPECT_THAT(verifierMessage(programs),
              AllOf(HasSubstr("a cycle of waits"), HasSubstr("and so back to rank")));
  programs[0].subgraphs[0].collectives = idsAt<GroupId>({0, 1});
  EXPECT_NO_THROW(verifyPrograms(programs));
}

// Rank 1 may write "s" again, in its part of the collective, only when rank 0 has received it; rank 0
// receives afterwards.
TEST(VerifyCollectives, FindsAMemberThatWaitsForASendWhichTheOthersReceiveLater) {
  ProgramWriter a(0, 2, 1), b(1, 2, 1);
  for (ProgramWriter* writer : {&a, &b}) {
    writer->input("x", {2, 3}, -1);
    writer->program().groups = {idsAt<RankId>({0, 1})};
    writer->load("x", 0);
  }
  b.accumulate("x", "s", true, -1);
  b.send(0, "s");
  b.allReduce(0, "s");
  a.allReduce(0, "x");
  a.receive(1, "s");
  for (ProgramWriter* writer : {&a, &b}) {
    writer->release("x");
    writer->release("s");
  }
  std::vector<Program> programs = {a.program(), b.program()};
  EXPECT_THAT(
      verifierMessage(programs),
      AllOf(
          HasSubstr(
              "rank 1, instruction 3 (all_reduce group=0 \"s\" -> \"s\") waits for rank 0 to receive \"s\""),
          HasSubstr("rank 0, instruction 1 (all_reduce group=0 \"x\" -> \"x\") waits for rank 1 to reach the "
                    "all_reduce")));
  std::swap(programs[0].instructions[1], programs[0].instructions[2]);
  EXPECT_NO_THROW(verifyPrograms(programs));
}

}  // namespace
}  // namespace pipeshard
