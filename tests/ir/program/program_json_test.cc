#include <algorithm>
#include <ctime>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/error.h"
#include "ir/program/program.h"
#include "ir/program/program_json.h"
#include "ir/program/program_print.h"
#include "tests/expect_error.h"
#include "tests/ir/base/edited_text.h"
#include "tests/ir/program/program_writer.h"

namespace pipeshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Program withConstant(size_t elements) {
  ProgramWriter writer(0, 1, 1);
  const BufferId id = writer.buffer("c", BufferKind::kWeight, {static_cast<int64_t>(elements)});
  Constant constant{DataType::kUint8, {static_cast<int64_t>(elements)}, {}};
  for (size_t i = 0; i < elements; ++i) constant.bytes.push_back(static_cast<std::byte>(i * 7 + 3));
  Buffer& buffer = writer.program().buffers[id.index()];
  buffer.data_type = DataType::kUint8;
  buffer.source = constant;
  buffer.source_type = DataType::kUint8;
  return writer.program();
}

void expectError(const std::string& text, ErrorCode code, const std::string& message) {
  EXPECT_ERROR(programFromJson(text), code, message);
}

TEST(ProgramJson, RoundTripsEveryField) {
  auto programs = twoRankPrograms();
  programs[0].groups = {idsAt<RankId>({0, 1})};
  programs[0].inputs[0].low = -5;
  programs[0].inputs[0].high = 50257;
  programs[0].inputs[0].allowed = AllowedIntegers{-7, 9, -100, false};
  programs[0].results[1].state = "momentum";
  programs[0].buffers[0].source_type = DataType::kFloat32;
  programs[0].guard = BufferId(2);
  for (const Program& program : programs) {
    const std::string json = programToJson(program);
    const Program parsed = programFromJson(json);
    EXPECT_EQ(printProgram(parsed), printProgram(program));
    EXPECT_EQ(programToJson(parsed), json);
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      EXPECT_EQ(parsed.instructions.plain()[i].inputs, program.instructions.plain()[i].inputs);
      EXPECT_EQ(parsed.instructions.plain()[i].microbatch, program.instructions.plain()[i].microbatch);
      EXPECT_EQ(parsed.instructions.plain()[i].subgraph, program.instructions.plain()[i].subgraph);
    }
  }
}

TEST(ProgramJson, RoundTripsRowsCollectivesAndForwardStates) {
  ProgramWriter writer(0, 2, 2);
  writer.program().groups = {idsAt<RankId>({0}), idsAt<RankId>({0, 1})};
  writer.input("x", {5, 3}, 0);
  writer.buffer("x@1", BufferKind::kInput, {2, 3});
  writer.buffer("half", BufferKind::kActivation, {2, 1});
  writer.subgraph("forward", Phase::kForward, {"x"}, {"y"}, {1, 0, 1});
  const BufferId mean = writer.parameter("mean");
  writer.program().buffers[mean.index()].kind = BufferKind::kForwardState;
  writer.load("x@1", 1, 3);
  writer.slice("x@1", "half", 1, 2);
  writer.concatenate({"half", "half"}, "whole", 0);
  writer.zero("whole");
  writer.result(Result::Kind::kForwardState, "mean", "mean");
  const Program& program = writer.program();
  const std::string json = programToJson(program);
  const Program parsed = programFromJson(json);
  EXPECT_EQ(programToJson(parsed), json);
  EXPECT_EQ(printProgram(parsed), printProgram(program));
  EXPECT_EQ(parsed.subgraphs[0].collectives, idsAt<GroupId>({1, 0, 1}));
  EXPECT_EQ(parsed.buffer(mean).kind, BufferKind::kForwardState);
  EXPECT_EQ(parsed.buffer(mean).source, program.buffer(mean).source);
  EXPECT_EQ(parsed.results[0].kind, Result::Kind::kForwardState);
  ASSERT_EQ(parsed.instructions.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(parsed.instructions.plain()[i].kind, program.instructions.plain()[i].kind) << i;
    EXPECT_EQ(parsed.instructions.plain()[i].axis, program.instructions.plain()[i].axis) << i;
    EXPECT_EQ(parsed.instructions.plain()[i].offset, program.instructions.plain()[i].offset) << i;
  }
  expectError(replaced(json, "\"collectives\":[1,0,1]", "\"collectives\":[1,2,1]"), ErrorCode::kConfiguration,
              "program.json.subgraphs[0].collectives");
  expectError(replaced(json, "\"offset\":3", "\"offset\":-3"), ErrorCode::kConfiguration,
              "program.json.instructions[0].offset: found -3");
  expectError(replaced(json, "\"axis\":1", "\"axis\":-1"), ErrorCode::kConfiguration,
              "program.json.instructions[1].axis: found -1");
}

TEST(ProgramJson, RoundTripsConstantsOfEveryLengthModuloThree) {
  for (size_t elements :
       {size_t{0}, size_t{1}, size_t{2}, size_t{3}, size_t{4}, size_t{300}, size_t{64 * 1024}}) {
    const Program program = withConstant(elements);
    EXPECT_EQ(programFromJson(programToJson(program)).buffers.plain()[0].source,
              program.buffers.plain()[0].source)
        << elements;
  }
}

TEST(ProgramJson, RefusesToInlineABigConstant) {
  try {
    programToJson(withConstant(64 * 1024 + 1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    EXPECT_THAT(error.message(), AllOf(HasSubstr("buffer \"c\""), HasSubstr("65537 bytes")));
  }
}

TEST(ProgramJson, NamesTheFieldThatIsWrong) {
  const std::string json = programToJson(twoRankPrograms()[0]);
  expectError(replaced(json, "\"kind\":\"send\"", "\"kind\":\"post\""), ErrorCode::kConfiguration,
              "program.json.instructions[2].kind: found \"post\"; expected one of \"load_input\", \"run\"");
  expectError(replaced(json, "\"peer\":1", "\"peer\":2"), ErrorCode::kConfiguration,
              "program.json.instructions[2].peer: found 2; expected an integer from 0 to 1");
  expectError(replaced(json, "\"peer\":1", "\"pear\":1"), ErrorCode::kConfiguration,
              "program.json.instructions[2]: found an unknown key \"pear\"");
  expectError(replaced(json, "\"rank\": 0", "\"rank\": 0.5"), ErrorCode::kConfiguration,
              "program.json.rank: found 0.5; expected an integer");
  expectError(replaced(json, "\"length\":24", "\"length\":23"), ErrorCode::kConfiguration,
              "program.json.buffers[0].source.length: found 23");
  expectError(replaced(json, "\"outputs\":[4]", "\"outputs\":[99]"), ErrorCode::kConfiguration,
              "outputs[0]: found 99");
  expectError(replaced(json, "\"name\":\"step\"", "\"name\":\"w\""), ErrorCode::kConfiguration,
              "program.json.buffers[1].name: found \"w\"");
  expectError(replaced(json, "\"type\":\"float32\"", "\"type\":\"float31\""), ErrorCode::kConfiguration,
              "found \"float31\"");
  expectError(replaced(json, "\"shape\":[2,3]", "\"shape\":[4611686018427387904,8]"),
              ErrorCode::kConfiguration, "program.json.buffers[0].shape");
  expectError(replaced(json, "\"version\": 5", "\"version\": 2"), ErrorCode::kVersionMismatch,
              "version 2 was found");
  expectError(replaced(json, "\"version\": 5,", ""), ErrorCode::kConfiguration, "key \"version\" is missing");
  expectError(replaced(json, "\"rank\": 0", "\"rank\": 0, \"rank\": 1"), ErrorCode::kConfiguration,
              "key \"rank\" appears twice");
  expectError(json.substr(0, json.size() / 2), ErrorCode::kConfiguration, "this is not JSON");
  expectError("", ErrorCode::kConfiguration, "this is not JSON");
}

TEST(ProgramJson, RefusesDamagedBase64) {
  const std::string json = programToJson(withConstant(4));
  const size_t at = json.find("\"base64\":\"") + 10;
  std::string damaged = json;
  damaged[at] = '!';
  expectError(damaged, ErrorCode::kConfiguration, "program.json.buffers[0].source.base64");
  damaged = json;
  damaged.erase(at, 4);
  expectError(damaged, ErrorCode::kConfiguration, "expected 4 bytes");
}

TEST(ProgramJson, RefusesNamesThatAreNotUtf8) {
  auto programs = twoRankPrograms();
  programs[0].buffers[3].name = "x\xff";
  try {
    programToJson(programs[0]);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadModel);
  }
}

// A parser that looks through an array again at each of its elements takes 100 times as long for ten times as
// many.
TEST(ProgramJson, TimeToReadGrowsWithTheInstructionsAndNotWithTheirSquare) {
  const auto textOf = [](size_t instructions) {
    ProgramWriter writer(0, 1, 1);
    const BufferId id = writer.buffer("x", BufferKind::kActivation, {2});
    Instruction free;
    free.kind = InstructionKind::kFree;
    free.inputs = {id};
    writer.program().instructions.unrolled().assign(instructions, free);
    return programToJson(writer.program());
  };
  const auto secondsToRead = [](const std::string& text) {
    double least = 1e9;
    for (int run = 0; run < 3; ++run) {
      const std::clock_t begin = std::clock();
      EXPECT_FALSE(programFromJson(text).instructions.empty());
      least = std::min(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return least;
  };
  const double few = secondsToRead(textOf(8'000)), many = secondsToRead(textOf(80'000));
  EXPECT_LT(many / few, 35) << few << " s, " << many << " s";
}

}  // namespace
}  // namespace pipeshard
