// Buffers that hold a part of a tensor: program.json, printProgram, verifyPrograms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program.h"
#include "ir/program/program_json.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify.h"
#include "tests/expect_error.h"
#include "tests/ir/base/edited_text.h"
#include "tests/ir/program/program_writer.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Two ranks hold the columns [0,2) and [2,5) of "w" [3,5] and load the same columns of "x" [4,5] in two
// microbatches of rows; rank 0 sends "t", its half of a tensor, to rank 1, and both sum "s".
std::vector<Program> partPrograms() {
  std::vector<Program> programs;
  for (int rank = 0; rank < 2; ++rank) {
    ProgramWriter writer(rank, 2, 2);
    const int64_t start = rank == 0 ? 0 : 2, columns = rank == 0 ? 2 : 3;
    writer.program().groups = {idsAt<RankId>({0, 1})};
    writer.input("x", {4, 5}, 0);
    Buffer& w = writer.program().buffers[writer.parameter("w").index()];
    w.shape = {3, columns};
    w.part = BufferPart{{3, 5}, {0, start}};
    w.source = WeightReference{"/models/weights.bin", 128, 60};
    for (int k = 0; k < 2; ++k) {
      const std::string name = "x@" + std::to_string(k);
      Buffer& x = writer.program().buffers[writer.buffer(name, BufferKind::kInput, {2, columns}).index()];
      x.part = BufferPart{{2, 5}, {0, start}};
      writer.load(name, k, 2 * k);
      writer.release(name);
    }
    for (const char* name : {"t", "s"}) {
      writer.program().buffers[writer.buffer(name, BufferKind::kActivation, {2, 2}).index()].part =
          BufferPart{{2, 6}, {0, 2}};
    }
    if (rank == 0) writer.zero("t");
    if (rank == 0) writer.send(1, "t");
    if (rank == 1) writer.receive(0, "t");
    writer.zero("s");
    writer.allReduce(0, "s");
    writer.release("t");
    writer.release("s");
    writer.result(Result::Kind::kParameter, "w", "w");
    programs.push_back(writer.program());
  }
  return programs;
}

BufferPart& partOf(Program& program, const std::string& name) {
  for (Buffer& buffer : program.buffers) {
    if (buffer.name == name) return *buffer.part;
  }
  ADD_FAILURE() << name;
  return *program.buffers[0].part;
}

template <typename Change>
std::string messageAfter(Change change) {
  std::vector<Program> programs = partPrograms();
  change(programs);
  return verifierMessage(programs);
}

TEST(ProgramParts, RoundTripAndPrint) {
  const Program program = partPrograms()[1];
  const std::string json = programToJson(program);
  const Program parsed = programFromJson(json);
  EXPECT_EQ(programToJson(parsed), json);
  for (size_t b = 0; b < program.buffers.size(); ++b)
    EXPECT_EQ(parsed.buffers.plain()[b].part, program.buffers.plain()[b].part) << b;
  EXPECT_THAT(
      printProgram(parsed),
      HasSubstr(
          "\"w\": parameter float32[3,3] part of [3,5] from [0,2] on from /models/weights.bin [128, +60]"));
  const auto refuse = [&](const char* from, const char* to, const char* message) {
    EXPECT_ERROR(programFromJson(replaced(json, from, to)), ErrorCode::kConfiguration, message);
  };
  refuse("\"start\":[0,2]", "\"start\":[0,3]", "program.json.buffers[0].part: found");
  refuse("\"start\":[0,2]", "\"start\":[0,3]",
         "expected a box of a tensor, but [3,3] from [0,3] on passes the end of axis 1 of [3,5]");
  refuse("\"start\":[0,2]", "\"start\":[0]", "has another number of axes than");
  refuse("\"start\":[0,2]", "\"start\":[0,-2]", "program.json.buffers[0].part.start[1]: found -2");
  refuse("\"start\":[0,2]", "\"begin\":[0,2]", "program.json.buffers[0].part");
  refuse("\"length\":60", "\"length\":36",
         "program.json.buffers[0].source.length: found 36; expected an integer from 60 to 60");
}

TEST(ProgramParts, AConstantIsTheWholeTensors) {
  ProgramWriter writer(0, 1, 1);
  Buffer& buffer = writer.program().buffers[writer.parameter("w").index()];
  buffer.source = Constant{DataType::kFloat32, {4, 3}, std::vector<std::byte>(48)};
  buffer.part = BufferPart{{4, 3}, {2, 0}};
  const std::string json = programToJson(writer.program());
  EXPECT_EQ(programFromJson(json).buffers[0].source, buffer.source);
  EXPECT_ERROR(programFromJson(replaced(json, "\"shape\":[4,3],\"base64\"", "\"shape\":[2,3],\"base64\"")),
               ErrorCode::kConfiguration, "expected the shape of the buffer's tensor, [4,3]");
}

TEST(VerifyParts, AcceptsPartsThatFit) { EXPECT_NO_THROW(verifyPrograms(partPrograms())); }

TEST(VerifyParts, FindsAPartOutsideOfItsTensor) {
  EXPECT_THAT(messageAfter([](auto& p) {
                partOf(p[1], "w").start = {1, 2};
              }),
              AllOf(HasSubstr("rank 1"), HasSubstr("\"w\""),
                    HasSubstr("[3,3] from [1,2] on passes the end of axis 0 of [3,5]")));
  EXPECT_THAT(messageAfter([](auto& p) { partOf(p[1], "w").start = {0}; }),
              HasSubstr("another number of axes"));
}

TEST(VerifyParts, FindsAnInputThatIsNoPartOfTheBatch) {
  EXPECT_THAT(
      messageAfter([](auto& p) { p[1].instructions[2].offset = 3; }),
      AllOf(
          HasSubstr("rank 1, instruction 2 (load_input microbatch=1 offset=3"),
          HasSubstr(
              "\"x@1\" (float32[2,3]) (part of [2,5] from [0,2] on) from 3 on is no part of float32[4,5]")));
  EXPECT_THAT(messageAfter([](auto& p) {
                partOf(p[0], "x@0").whole = {2, 4};
              }),
              HasSubstr("is no part of float32[4,5]"));
  EXPECT_THAT(messageAfter([](auto& p) { p[0].inputs[0].axis = p[1].inputs[0].axis = -1; }),
              HasSubstr("is no part of float32[4,5]"));
}

TEST(VerifyParts, FindsAMessageOfAnotherPart) {
  EXPECT_THAT(messageAfter([](auto& p) {
                partOf(p[1], "t").start = {0, 3};
              }),
              AllOf(HasSubstr("rank 1, instruction"),
                    HasSubstr("it expects [2,2] from [0,3] on of a tensor [2,6], but rank 0, instruction"),
                    HasSubstr("gives [2,2] from [0,2] on of a tensor [2,6]")));
}

TEST(VerifyParts, FindsASumOfDifferentParts) {
  EXPECT_THAT(messageAfter([](auto& p) {
                partOf(p[1], "s").start = {0, 3};
              }),
              AllOf(HasSubstr("all_reduce"), HasSubstr("it sums [2,2] from [0,"),
                    HasSubstr("of a tensor [2,6], but rank")));
}

TEST(VerifyParts, FindsResultsThatAreNotTheWholeOnce) {
  EXPECT_THAT(messageAfter([](auto& p) { p[1].results.clear(); }),
              AllOf(HasSubstr("rank 0, the result \"w\""),
                    HasSubstr("the parts hold 6 of the 15 elements of [3,5]")));
  EXPECT_THAT(messageAfter([](auto& p) {
                partOf(p[1], "w").start = {0, 1};
              }),
              HasSubstr("[3,2] from [0,0] on and [3,3] from [0,1] on overlap"));
  EXPECT_THAT(messageAfter([](auto& p) {
                partOf(p[1], "w").whole = {3, 6};
              }),
              HasSubstr("rank 1, the result \"w\": it is of another type or whole shape than on rank 0"));
  EXPECT_THAT(messageAfter([](auto& p) { p[1].buffers[0].part.reset(); }),
              HasSubstr("ranks 0 and 1 list it, and the buffer \"w\" (float32[3,3]) is no part of a tensor"));
}

}  // namespace
}  // namespace pipeshard
