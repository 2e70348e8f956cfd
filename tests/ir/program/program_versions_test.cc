// Programs whose steps are windows of several updates: versions of parameters beside the latest one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/program/program_json.h"
#include "ir/program/program_print.h"
#include "ir/program/program_verify.h"
#include "tests/expect_error.h"
#include "tests/ir/program/program_writer.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

// Two updates of one microbatch each, stashed: microbatch 1 goes forward before the first update and reads
// the first version backward too.
//   forward 0, forward 1; backward 0; update "w" -> "w@1"; backward 1 with "w"; update "w@1" -> "w"
Program window() {
  ProgramWriter writer(0, 1, 2);
  writer.program().updates_per_step = 2;
  writer.input("x", {4, 3}, 0);
  writer.parameter("w");
  writer.buffer("dw", BufferKind::kGradient);
  writer.buffer("w@1", BufferKind::kWeightVersion);
  writer.subgraph("forward", Phase::kForward, {"x", "w"}, {"h"});
  writer.subgraph("backward_weight", Phase::kBackwardWeight, {"h", "w"}, {"dw"});
  writer.subgraph("update", Phase::kUpdate, {"w", "dw"}, {"w_new"});
  for (const char* at : {"@0", "@1"}) {
    const int k = at[1] - '0';
    writer.load(std::string("x") + at, k, 2 * k);
    writer.run(0, k, {std::string("x") + at, "w"}, {std::string("h") + at});
    writer.release(std::string("x") + at);
  }
  for (const char* at : {"@0", "@1"}) {
    const int k = at[1] - '0';
    writer.run(1, k, {std::string("h") + at, "w"}, {std::string("dw") + at});
    writer.release(std::string("h") + at);
    writer.accumulate(std::string("dw") + at, "dw", true, k);
    writer.release(std::string("dw") + at);
    writer.update(2, {k == 0 ? "w" : "w@1", "dw"}, {k == 0 ? "w@1" : "w"});
    writer.program().instructions.back().microbatch = k;
    writer.result(Result::Kind::kGradient, "w", "dw");
    writer.program().results.back().update = k;
  }
  writer.release("w@1");
  writer.result(Result::Kind::kParameter, "w", "w");
  return writer.program();
}

size_t indexOf(const Program& program, InstructionKind kind, int microbatch) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (program.instructions.plain()[i].kind == kind &&
        program.instructions.plain()[i].microbatch == microbatch)
      return i;
  }
  ADD_FAILURE();
  return 0;
}

TEST(ProgramVersions, AWindowOfTwoUpdatesIsVerifiedPrintedAndKeptInAFile) {
  const Program program = window();
  EXPECT_NO_THROW(verifyPrograms({program}));
  EXPECT_EQ(updateOf(program, program.instructions.plain()[indexOf(program, InstructionKind::kUpdate, 0)]),
            0);
  EXPECT_EQ(updateOf(program, program.instructions.plain()[indexOf(program, InstructionKind::kUpdate, 1)]),
            1);
  EXPECT_THAT(printProgram(program), HasSubstr("gradient w of update 1: \"dw\""));
  const Program parsed = programFromJson(programToJson(program));
  EXPECT_EQ(printProgram(parsed), printProgram(program));
  EXPECT_EQ(parsed.results[1].update, 1);
  EXPECT_EQ(parsed.results[2].update, -1);
  EXPECT_EQ(parsed.updates_per_step, 2);
}

TEST(ProgramVersions, ABackwardPassThatReadsAnotherVersionThanItsForwardPassIsFound) {
  Program program = window();
  for (Instruction& instruction : program.instructions) {
    if (instruction.kind == InstructionKind::kUpdate && instruction.microbatch == 0)
      instruction.outputs = {instruction.inputs[0]};
    if (instruction.kind == InstructionKind::kUpdate && instruction.microbatch == 1)
      instruction.inputs[0] = instruction.outputs[0];
  }
  std::erase_if(program.instructions.unrolled(), [&](const Instruction& instruction) {
    return instruction.kind == InstructionKind::kFree &&
           program.buffer(instruction.inputs[0]).kind == BufferKind::kWeightVersion;
  });
  EXPECT_THAT(verifierMessage({program}), HasSubstr("it reads another version of \"w\""));
}

TEST(ProgramVersions, AVersionIsMadeByAnUpdateOnly) {
  Program program = window();
  Instruction& accumulate = program.instructions[indexOf(program, InstructionKind::kAccumulate, 0)];
  accumulate.outputs = program.instructions[indexOf(program, InstructionKind::kUpdate, 0)].outputs;
  EXPECT_THAT(verifierMessage({program}), HasSubstr("a version of a parameter, which only an update makes"));
}

TEST(ProgramVersions, UpdatesAndResultsOfAWindowFitTogether) {
  Program program = window();
  program.updates_per_step = 3;
  EXPECT_THAT(verifierMessage({program}), HasSubstr("it makes 3 updates of 2 microbatches"));
  program = window();
  program.results[1].update = 2;
  EXPECT_THAT(verifierMessage({program}), HasSubstr("is of update 2, of 2"));
  program = window();
  program.instructions[indexOf(program, InstructionKind::kUpdate, 1)].microbatch = 0;
  EXPECT_THAT(verifierMessage({program}), HasSubstr("no update 1 reads the gradient of \"w\""));
  program = window();
  program.results[1].update = 0;
  EXPECT_THAT(verifierMessage({program}), HasSubstr("the result \"w\""));  // twice for one update
}

}  // namespace
}  // namespace pipeshard
