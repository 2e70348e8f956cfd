#include "runtime/data/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "runtime/data/batch_check.h"
#include "runtime/files/tensor_file.h"
#include "tests/expect_error.h"
#include "tests/runtime/files/npz_writer.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

ProgramInput floats(Shape shape, int axis, DataType type = DataType::kFloat64) {
  return {"x", type, std::move(shape), axis, 0, 0};
}
ProgramInput integers(Shape shape, int axis, int64_t low, int64_t high) {
  return {"ids", DataType::kInt64, std::move(shape), axis, low, high};
}

// Rows [offset, offset + count) of an input in a step; all of it when count is -1.
template <typename T>
std::vector<T> rows(DataSource& source, const ProgramInput& input, int64_t step, int64_t offset = 0,
                    int64_t count = -1, size_t index = 0) {
  Shape shape = input.shape;
  if (count >= 0) shape[input.axis] = count;
  std::vector<T> elements(elementCount(shape));
  source.fill(index, step, offset, std::as_writable_bytes(std::span(elements)));
  return elements;
}

TEST(SyntheticData, IsTheSameHoweverTheBatchIsCut) {
  const ProgramInput input = floats({8, 5}, 0);
  const auto source = makeSyntheticData({input}, 3);
  const auto whole = rows<double>(*source, input, 2);
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{2, 2, 2, 2}, {3, 0, 4, 1}, {8}}) {
    std::vector<double> joined;
    int64_t offset = 0;
    for (const int64_t count : counts) {
      const auto part = rows<double>(*source, input, 2, offset, count);
      joined.insert(joined.end(), part.begin(), part.end());
      offset += count;
    }
    EXPECT_EQ(joined, whole);
  }
}

ProgramInput mask(Shape shape, int axis, double probability) {
  ProgramInput input{"mask", DataType::kBool, std::move(shape), axis};
  input.drawn = {RandomNumbers::Kind::kTrue, probability};
  return input;
}

TEST(DrawnData, IsTheSameHoweverItIsCut) {
  const ProgramInput input = mask({6, 4}, 0, 0.5);
  const auto source = makeSyntheticData({input}, 3);
  std::vector<std::byte> whole(24);
  source->fill(0, 1, 0, whole);
  for (int64_t row = 0; row < 6; ++row) {
    for (int64_t column = 0; column < 4; column += 2) {
      std::vector<std::byte> part(2);
      source->fill(0, 1, Shard{{row, column}, {1, 2}}, part);
      EXPECT_EQ(part[0], whole[row * 4 + column]);
      EXPECT_EQ(part[1], whole[row * 4 + column + 1]);
    }
  }
}

TEST(DrawnData, HasTheProbabilityAndDependsOnSeedStepAndName) {
  const int64_t count = 100'000;
  const auto draw = [&](const ProgramInput& input, uint64_t seed, int64_t step) {
    std::vector<std::byte> bytes(count);
    makeSyntheticData({input}, seed)->fill(0, step, 0, bytes);
    return bytes;
  };
  const auto share = [&](const std::vector<std::byte>& bytes) {
    return static_cast<double>(std::count(bytes.begin(), bytes.end(), std::byte{1})) / count;
  };
  const ProgramInput input = mask({count}, 0, 0.9);
  const std::vector<std::byte> first = draw(input, 0, 1);
  EXPECT_NEAR(share(first), 0.9, 0.005);  // five standard deviations
  EXPECT_EQ(share(draw(mask({count}, 0, 1), 0, 1)), 1);
  EXPECT_EQ(share(draw(mask({count}, 0, 0), 0, 1)), 0);
  EXPECT_EQ(draw(input, 0, 1), first);
  ProgramInput renamed = input;
  renamed.name = "other";
  for (const std::vector<std::byte>& other : {draw(input, 1, 1), draw(input, 0, 2), draw(renamed, 0, 1)}) {
    int64_t both_false = 0;
    for (int64_t i = 0; i < count; ++i) both_false += other[i] == std::byte{0} && first[i] == std::byte{0};
    EXPECT_NEAR(static_cast<double>(both_false) / count, 0.01, 0.0016);  // independent of each other
  }
}

TEST(DrawnData, IsNoArrayOfAFile) {
  const TemporaryFolder folder;
  writeNpz(folder.file("d.npz"),
           {{"ids.npy", npyArray("<i8", "(4, 3)", bytesOf(std::vector<int64_t>(12, 1)))}});
  const ProgramInput drawn = mask({2, 5}, 0, 0.5);
  const auto source = openData({folder.file("d.npz"), 7}, {drawn, integers({2, 3}, 0, 0, 10)});
  std::vector<std::byte> got(10), want(10);
  source->fill(0, 2, 0, got);
  makeSyntheticData({drawn}, 7)->fill(0, 2, 0, want);
  EXPECT_EQ(got, want);
}

TEST(NpzData, NamesRowAndRangeOfANumberThatTheModelDoesNotAllow) {
  const TemporaryFolder folder;
  ProgramInput input = integers({2, 3}, 0, 0, 10);
  const auto open = [&](const std::vector<int64_t>& elements, DataType type = DataType::kInt64) {
    writeNpz(folder.file("d.npz"), {{"ids.npy", npyArray("<i8", "(4, 3)", bytesOf(elements))}});
    input.data_type = type;
    return openData({folder.file("d.npz")}, {input});
  };
  EXPECT_NO_THROW(open({0, 1, 2, 3, 4, 5, 6, 7, 99, 9, 9, 9}));  // nothing is known
  input.allowed = AllowedIntegers{0, 10, -100};
  EXPECT_NO_THROW(open({0, 1, 2, 3, 4, 5, 6, 7, -100, 9, 9, 9}));
  EXPECT_ERROR(open({0, 1, 2, 3, 4, 5, 6, 7, 10, 9, 9, 9}), ErrorCode::kConfiguration,
               "d.npz, array 'ids', row 2: found 10 at [2,2], but the model takes integers from 0 to 9 (or "
               "-100, which is ignored)");
  EXPECT_ERROR(open({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, -1, 9}, DataType::kInt32), ErrorCode::kConfiguration,
               "row 3: found -1 at [3,1]");
}

// 9 against 7: what is left of either would be no one's last batch.
TEST(NpzData, UnequalArraysAreToldBeforeTheRestOfAnEpoch) {
  const TemporaryFolder folder;
  writeNpz(folder.file("d.npz"), {{"x.npy", npyArray("<f8", "(9,)", bytesOf(std::vector<double>(9)))},
                                  {"ids.npy", npyArray("<i8", "(7,)", bytesOf(std::vector<int64_t>(7)))}});
  const std::vector<ProgramInput> inputs = {floats({4}, 0), integers({4}, 0, 0, 10)};
  const std::string message = "array 'x' has 9 examples but array 'ids' has 7; they must be as many";
  EXPECT_ERROR(openData({folder.file("d.npz")}, inputs), ErrorCode::kConfiguration, message);
  EXPECT_ERROR(outlineData({folder.file("d.npz")}, inputs), ErrorCode::kConfiguration, message);
}

TEST(ArrayNames, WhatNoInputTakesIsSaid) {
  const TemporaryFolder folder;
  const std::vector<float> numbers = {1, 2, 3};
  std::filesystem::create_directory(folder.file("d"));
  std::vector<TensorView> tensors;
  std::vector<std::pair<std::string, std::string>> members;
  for (const std::string name : {"a", "ids", "x", "z"}) {
    const bool whole = name == "ids";
    members.emplace_back(name + ".npy",
                         npyArray(whole ? "<i4" : "<f4", "(3,)",
                                  whole ? bytesOf(std::vector<int32_t>{1, 2, 3}) : bytesOf(numbers)));
    std::ofstream(folder.file("d/" + name + ".npy"), std::ios::binary) << members.back().second;
    tensors.push_back({name, whole ? DataType::kInt32 : DataType::kFloat32, {3}, numbers.data()});
  }
  writeNpz(folder.file("d.npz"), members);
  writeTensorFile(folder.file("d.safetensors"), tensors);
  std::ofstream(folder.file("d.csv")) << "a,ids,x,z\n1,2,3,4\n1,2,3,4\n";
  std::ofstream(folder.file("d.jsonl"))
      << "{\"x\": 1, \"z\": 2, \"a\": [], \"ids\": 1}\n{\"x\": 1, \"ids\": 0}\n";
  const std::vector<ProgramInput> inputs = {floats({1}, 0), mask({1}, 0, 0.5), integers({1}, 0, 0, 10)};
  const std::string said = "no input takes a, z; the model's inputs are x, ids";
  for (const char* name : {"d", "d.npz", "d.safetensors", "d.csv", "d.jsonl"}) {
    const std::string path = folder.file(name);
    EXPECT_THAT(openData({path}, inputs)->describe(), ::testing::HasSubstr(path + ": " + said + "; "));
    EXPECT_EQ(outlineData({path}, inputs).unused, said) << name;
  }
}

// Whoever asks for numbers of rows alone need not know types.
TEST(ArrayNames, AnInputWithoutATypeMayBeAnything) {
  const TemporaryFolder folder;
  std::ofstream(folder.file("d.jsonl")) << "{\"x\": true}\n{\"x\": 1}\n{\"x\": 1.5}\n";
  const DataOutline outline = outlineData({folder.file("d.jsonl")}, {floats({2}, 0, DataType::kUndefined)});
  EXPECT_EQ(outline.last_batch, 1);
  EXPECT_EQ(outline.unused, "");
}

TEST(BatchCheck, NamesTheRowOfANumberThatMayHaveFailedTheStep) {
  const TemporaryFolder folder;
  Program program;
  program.inputs = {integers({2}, 0, 0, 10)};
  program.inputs[0].allowed = AllowedIntegers{0, 10, -100, false};
  ASSERT_TRUE(
      writeNpz(folder.file("d.npz"),
               {{"ids.npy", npyArray("<i8", "(4,)", bytesOf(std::vector<int64_t>{3, -100, 1, 77}))}}));
  const auto data = openData({folder.file("d.npz")}, program.inputs);  // 77 may be cut off by the model
  program.buffers.emplace_back().value = "ids";
  Instruction& load = program.instructions.emplace_back();
  load.kind = InstructionKind::kLoadInput;
  load.outputs = {BufferId(0)};
  EXPECT_EQ(explainFailedStep(program, *data, 1), "");
  EXPECT_EQ(explainFailedStep(program, *data, 2),
            folder.file("d.npz") +
                ", array 'ids', row 3: found 77 at [3], but the model takes integers from 0 to 9 (or -100, "
                "which is ignored)");
  DataDescription shuffled{folder.file("d.npz")};
  shuffled.shuffle = true;
  const auto in_another_order = openData(shuffled, program.inputs);
  EXPECT_THAT(
      explainFailedStep(program, *in_another_order, 1) + explainFailedStep(program, *in_another_order, 2),
      ::testing::HasSubstr("row 3: found 77 at [3]"));
}

TEST(BatchCheck, TellsWhetherAllLabelsAreIgnored) {
  const TemporaryFolder folder;
  Program program;
  program.inputs = {integers({2}, 0, 0, 10)};
  program.inputs[0].allowed = AllowedIntegers{0, 10, -100};
  writeNpz(folder.file("d.npz"),
           {{"ids.npy", npyArray("<i8", "(4,)", bytesOf(std::vector<int64_t>{3, -100, -100, -100}))}});
  const auto data = openData({folder.file("d.npz")}, program.inputs);
  // another rank loads the labels
  EXPECT_THAT(explainNotFiniteLoss(program, *data, 2), ::testing::HasSubstr("learning rate"));
  program.buffers.emplace_back().value = "ids";
  Instruction& load = program.instructions.emplace_back();
  load.kind = InstructionKind::kLoadInput;
  load.outputs = {BufferId(0)};
  EXPECT_THAT(explainNotFiniteLoss(program, *data, 1), ::testing::HasSubstr("learning rate"));
  EXPECT_THAT(explainNotFiniteLoss(program, *data, 2),
              ::testing::HasSubstr("every label of its batch ('ids') is -100"));
}

TEST(BatchCheck, SaysThatSyntheticDataMayBeToBlame) {
  Program program;
  program.inputs = {floats({2, 4}, 0)};
  const auto data = openData({}, program.inputs);
  EXPECT_THAT(explainNotFiniteLoss(program, *data, 1),
              ::testing::AllOf(::testing::HasSubstr("random numbers, for no data were given"),
                               ::testing::HasSubstr("--data FILE")));
}

TEST(SyntheticData, CutsAnInnerAxis) {
  const ProgramInput input = floats({2, 4}, 1);
  const auto source = makeSyntheticData({input}, 3);
  const auto whole = rows<double>(*source, input, 1);
  EXPECT_EQ(rows<double>(*source, input, 1, 1, 3),
            (std::vector<double>{whole[1], whole[2], whole[3], whole[5], whole[6], whole[7]}));
}

TEST(SyntheticData, RefusesRowsThatTheBatchDoesNotHave) {
  const ProgramInput cut = floats({8, 5}, 0);
  const ProgramInput uncut = floats({8, 5}, -1);
  const auto source = makeSyntheticData({cut, uncut}, 3);
  EXPECT_ANY_THROW(rows<double>(*source, cut, 1, 7, 2));
  EXPECT_ANY_THROW(rows<double>(*source, cut, 1, -1, 2));
  std::vector<double> part(7);  // no whole row
  EXPECT_ANY_THROW(source->fill(0, 1, 0, std::as_writable_bytes(std::span(part))));
  EXPECT_ANY_THROW(source->fill(1, 1, 0, {}));
  EXPECT_EQ(rows<double>(*source, uncut, 1).size(), 40u);
}

TEST(SyntheticData, DependsOnSeedStepAndName) {
  const ProgramInput input = floats({4, 4}, 0);
  ProgramInput other = input;
  other.name = "y";
  const auto source = makeSyntheticData({input, other}, 3);
  const auto reference = rows<double>(*source, input, 1);
  EXPECT_EQ(rows<double>(*source, input, 1), reference);
  EXPECT_NE(rows<double>(*source, input, 2), reference);
  EXPECT_NE(rows<double>(*source, other, 1, 0, -1, 1), reference);
  EXPECT_NE(rows<double>(*makeSyntheticData({input}, 4), input, 1), reference);
}

TEST(SyntheticData, Float32IsFloat64Rounded) {
  const ProgramInput wide = floats({100}, 0);
  const ProgramInput narrow = floats({100}, 0, DataType::kFloat32);
  const auto exact = rows<double>(*makeSyntheticData({wide}, 3), wide, 1);
  const auto rounded = rows<float>(*makeSyntheticData({narrow}, 3), narrow, 1);
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_EQ(rounded[i], static_cast<float>(exact[i]));
}

TEST(SyntheticData, IsStandardNormal) {
  const ProgramInput input = floats({200000}, 0);
  const auto sample = rows<double>(*makeSyntheticData({input}, 5), input, 1);
  double moments[4] = {};
  for (const double x : sample) {
    for (int p = 0; p < 4; ++p) moments[p] += std::pow(x, p + 1) / static_cast<double>(sample.size());
  }
  EXPECT_NEAR(moments[0], 0, 0.01);  // about four standard errors each
  EXPECT_NEAR(moments[1], 1, 0.015);
  EXPECT_NEAR(moments[2], 0, 0.04);
  EXPECT_NEAR(moments[3], 3, 0.1);
  double neighbours = 0;
  for (size_t i = 1; i < sample.size(); ++i)
    neighbours += sample[i] * sample[i - 1] / static_cast<double>(sample.size());
  EXPECT_NEAR(neighbours, 0, 0.01);
}

TEST(SyntheticData, IntegersFillTheirRangeEvenly) {
  const ProgramInput input = integers({70000}, 0, -3, 4);
  const auto sample = rows<int64_t>(*makeSyntheticData({input}, 5), input, 1);
  std::vector<int> counts(7, 0);
  for (const int64_t x : sample) {
    ASSERT_GE(x, -3);
    ASSERT_LT(x, 4);
    ++counts[x + 3];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10000, 400);
  EXPECT_ERROR(makeSyntheticData({integers({4}, 0, 5, 5)}, 0), ErrorCode::kConfiguration, "'ids'");
}

TEST(NpzData, TakesTheNextRowsEachStepAndStartsAgain) {
  const TemporaryFolder folder;
  std::vector<int32_t> numbers(8);
  std::iota(numbers.begin(), numbers.end(), 0);
  ASSERT_TRUE(writeNpz(folder.file("d.npz"), {{"ids.npy", npyArray("<i4", "(8,)", bytesOf(numbers))}}));
  const ProgramInput input = integers({4}, 0, 0, 10);
  const auto source = openData({folder.file("d.npz")}, {input});
  EXPECT_EQ(rows<int64_t>(*source, input, 1, 0, 2), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(rows<int64_t>(*source, input, 1, 2, 2), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(rows<int64_t>(*source, input, 2, 1, 3), (std::vector<int64_t>{5, 6, 7}));
  EXPECT_EQ(rows<int64_t>(*source, input, 3, 0, 2), (std::vector<int64_t>{0, 1}));
  EXPECT_ANY_THROW(rows<int64_t>(*source, input, 1, 3, 2));
}

// The message of the Error(kConfiguration) that opening the file gives.
std::string refusal(const std::string& path, const std::vector<ProgramInput>& inputs) {
  try {
    openData({path}, inputs);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    return error.message();
  }
  return "accepted";
}

TEST(NpzData, RefusesAPartialLastBatch) {
  const TemporaryFolder folder;
  ASSERT_TRUE(writeNpz(folder.file("d.npz"),
                       {{"ids.npy", npyArray("<i4", "(6,)", bytesOf<int32_t>({0, 1, 2, 3, 4, 5}))}}));
  EXPECT_NE(refusal(folder.file("d.npz"), {integers({4}, 0, 0, 10)}).find("6 examples"), std::string::npos);
}

TEST(NpzData, RefusesArraysWithUnequalNumbersOfExamples) {
  const TemporaryFolder folder;
  ASSERT_TRUE(
      writeNpz(folder.file("d.npz"), {{"ids.npy", npyArray("<i4", "(4,)", bytesOf<int32_t>({0, 1, 2, 3}))},
                                      {"x.npy", npyArray("<f4", "(2,)", bytesOf<float>({0, 1}))}}));
  const std::string message = refusal(folder.file("d.npz"), {integers({2}, 0, 0, 10), floats({2}, 0)});
  EXPECT_NE(message.find("array 'ids' has 4 examples but array 'x' has 2"), std::string::npos) << message;
}

TEST(NpzData, RefusesIntegersThatTheInputCannotHold) {
  const TemporaryFolder folder;
  ASSERT_TRUE(writeNpz(folder.file("d.npz"),
                       {{"ids.npy", npyArray("<i8", "(2,)", bytesOf<int64_t>({1, int64_t{1} << 40}))}}));
  ProgramInput input = integers({2}, 0, 0, 10);
  input.data_type = DataType::kInt32;
  EXPECT_NE(refusal(folder.file("d.npz"), {input}).find("1099511627776"), std::string::npos);
}

TEST(NpzData, CutsAnInnerAxisAndKeepsUncutInputs) {
  const TemporaryFolder folder;
  ASSERT_TRUE(writeNpz(folder.file("d.npz"),
                       {{"x.npy", npyArray("<f4", "(2, 4)", bytesOf<float>({0, 1, 2, 3, 4, 5, 6, 7}))}}));
  const ProgramInput cut = floats({2, 4}, 1);
  EXPECT_EQ(rows<double>(*openData({folder.file("d.npz")}, {cut}), cut, 1, 1, 3),
            (std::vector<double>{1, 2, 3, 5, 6, 7}));
  const ProgramInput uncut = floats({2, 4}, -1);
  EXPECT_EQ(rows<double>(*openData({folder.file("d.npz")}, {uncut}), uncut, 5),
            (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(NpzData, NamesWhatWasFoundAndExpected) {
  const TemporaryFolder folder;
  ASSERT_TRUE(writeNpz(folder.file("d.npz"),
                       {{"x.npy", npyArray("<f4", "(2, 3)", bytesOf<float>({0, 1, 2, 3, 4, 5}))},
                        {"ids.npy", npyArray("<f4", "(4,)", bytesOf<float>({0, 1, 2, 3}))}}));
  const auto open = [&](const ProgramInput& input) { openData({folder.file("d.npz")}, {input}); };
  EXPECT_ERROR(open(floats({4, 3}, 0)), ErrorCode::kConfiguration,
               "array 'x': found float32[2,3], expected float64[4,3] (or a longer axis 0)");
  EXPECT_ERROR(open(floats({2, 4}, 0)), ErrorCode::kConfiguration, "found float32[2,3]");
  EXPECT_ERROR(open(floats({6}, 0)), ErrorCode::kConfiguration, "expected float64[6]");
  EXPECT_ERROR(open(integers({4}, 0, 0, 9)), ErrorCode::kConfiguration,
               "found float32[4], expected int64[4]");
  ProgramInput missing = floats({4}, 0);
  missing.name = "labels";
  EXPECT_ERROR(open(missing), ErrorCode::kMissingInput, "'labels'");
}

}  // namespace
}  // namespace pipeshard
