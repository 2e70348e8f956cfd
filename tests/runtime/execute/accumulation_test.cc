#include "runtime/execute/accumulation.h"

#include <gtest/gtest.h>

namespace pipeshard {
namespace {

// Two microbatches: run -> part, accumulate part -> total, free part.
class Accumulations : public ::testing::Test {
 protected:
  Accumulations() {
    for (const char* name : {"weight", "part@0", "part@1", "total", "other"}) {
      const BufferKind kind = name == kWeightName ? BufferKind::kParameter : BufferKind::kActivation;
      program.buffers.push_back(
          {name, kind, DataType::kFloat32, {4}, name, std::nullopt, DataType::kUndefined});
    }
    for (const BufferId part : {part0, part1}) {
      instruct(InstructionKind::kRun, {weight}, {part});
      instruct(InstructionKind::kAccumulate, {part}, {total});
      program.instructions.back().overwrite = part == part0;
      instruct(InstructionKind::kFree, {part}, {});
    }
  }

  void instruct(InstructionKind kind, std::vector<BufferId> inputs, std::vector<BufferId> outputs) {
    program.instructions.push_back(make(kind, std::move(inputs), std::move(outputs)));
  }
  void insert(size_t at, InstructionKind kind, std::vector<BufferId> inputs, std::vector<BufferId> outputs) {
    program.instructions.unrolled().insert(program.instructions.begin() + at,
                                           make(kind, std::move(inputs), std::move(outputs)));
  }
  static Instruction make(InstructionKind kind, std::vector<BufferId> inputs, std::vector<BufferId> outputs) {
    Instruction instruction;
    instruction.kind = kind;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    return instruction;
  }

  // The places of both parts, where the kernel can add.
  std::vector<BufferId> places(bool may_add = true) const {
    const Accumulation found = findAccumulation(program, [=](const Instruction&, size_t) { return may_add; });
    return {found.placeOf(part0), found.placeOf(part1)};
  }

  static constexpr std::string_view kWeightName = "weight";
  const BufferId weight{0}, part0{1}, part1{2}, total{3}, other{4};
  Program program;
};

TEST_F(Accumulations, AreDoneByTheRunWhereItsKernelCanAdd) {
  EXPECT_EQ(places(), (std::vector{total, total}));
  const Accumulation found = findAccumulation(program, [](const Instruction&, size_t) { return true; });
  EXPECT_EQ(found.adds, (std::vector{false, false, true, false, false}));
  EXPECT_EQ(found.done, (std::vector{false, true, false, false, true, false}));
}

TEST_F(Accumulations, ThatOverwriteNeedNoKernelThatAdds) {
  EXPECT_EQ(places(false), (std::vector{total, part1}));
}

TEST_F(Accumulations, OfABufferThatIsReadBesideStaySeparate) {
  insert(1, InstructionKind::kSend, {part0}, {});
  EXPECT_EQ(places(), (std::vector{part0, total}));
}

TEST_F(Accumulations, OfAResultStaySeparate) {
  program.results.push_back({Result::Kind::kGradient, "w", "", part1});
  EXPECT_EQ(places(), (std::vector{total, part1}));
}

TEST_F(Accumulations, OfABufferThatSeveralInstructionsWriteStaySeparate) {
  insert(1, InstructionKind::kReceive, {}, {part0});
  EXPECT_EQ(places(), (std::vector{part0, total}));
}

TEST_F(Accumulations, StaySeparateWhereTheTotalIsUsedMeanwhile) {
  program.instructions[3].inputs = {weight, total};  // the run itself reads it
  EXPECT_EQ(places(), (std::vector{total, part1}));
  program.instructions[3].inputs = {weight};
  insert(4, InstructionKind::kSend, {total}, {});
  EXPECT_EQ(places(), (std::vector{total, part1}));
}

TEST_F(Accumulations, OfTwoPartsOfOneRunInOneTotalAreDoneByTheRunForTheFirstAlone) {
  program.instructions.unrolled().clear();
  instruct(InstructionKind::kRun, {weight}, {part0, part1});
  instruct(InstructionKind::kAccumulate, {part0}, {total});
  instruct(InstructionKind::kAccumulate, {part1}, {total});
  EXPECT_EQ(places(), (std::vector{total, part1}));
}

TEST_F(Accumulations, OfWhatNoRunMadeStaySeparate) {
  program.instructions[0] = make(InstructionKind::kReceive, {}, {part0});
  EXPECT_EQ(places(), (std::vector{part0, total}));
}

}  // namespace
}  // namespace pipeshard
