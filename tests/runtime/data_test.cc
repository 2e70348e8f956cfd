#include "runtime/data.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/runtime/expect_error.h"
#include "tests/runtime/npz_writer.h"
#include "tests/runtime/temporary_folder.h"

namespace pipeshard {
namespace {

ProgramInput floats(Shape shape, int axis, DataType type = DataType::kFloat64) { return {"x", type, std::move(shape), axis, 0, 0}; }
ProgramInput integers(Shape shape, int axis, int64_t low, int64_t high) {
  return {"ids", DataType::kInt64, std::move(shape), axis, low, high};
}

template <typename T>
std::vector<T> microbatch(DataSource& source, const ProgramInput& input, int64_t microbatches, int64_t step, int64_t k, size_t index = 0) {
  std::vector<T> elements(static_cast<size_t>(elementCount(microbatchShape(input, microbatches))));
  source.fill(index, step, k, std::as_writable_bytes(std::span(elements)));
  return elements;
}

TEST(SyntheticData, IsTheSameWhateverTheMicrobatches) {
  const ProgramInput input = floats({8, 5}, 0);
  const auto whole = microbatch<double>(*makeSyntheticData({input}, 1, 3), input, 1, 2, 0);
  const auto source = makeSyntheticData({input}, 4, 3);
  std::vector<double> joined;
  for (int64_t k = 0; k < 4; ++k) {
    const auto part = microbatch<double>(*source, input, 4, 2, k);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(joined, whole);
}

TEST(SyntheticData, CutsAnInnerAxis) {
  const ProgramInput input = floats({2, 4}, 1);
  const auto whole = microbatch<double>(*makeSyntheticData({input}, 1, 3), input, 1, 1, 0);
  const auto source = makeSyntheticData({input}, 2, 3);
  EXPECT_EQ(microbatch<double>(*source, input, 2, 1, 1), (std::vector<double>{whole[2], whole[3], whole[6], whole[7]}));
}

TEST(SyntheticData, DependsOnSeedStepAndName) {
  const ProgramInput input = floats({4, 4}, 0);
  ProgramInput other = input;
  other.name = "y";
  const auto source = makeSyntheticData({input, other}, 1, 3);
  const auto reference = microbatch<double>(*source, input, 1, 1, 0);
  EXPECT_EQ(microbatch<double>(*source, input, 1, 1, 0), reference);
  EXPECT_NE(microbatch<double>(*source, input, 1, 2, 0), reference);
  EXPECT_NE(microbatch<double>(*source, other, 1, 1, 0, 1), reference);
  EXPECT_NE(microbatch<double>(*makeSyntheticData({input}, 1, 4), input, 1, 1, 0), reference);
}

TEST(SyntheticData, Float32IsFloat64Rounded) {
  const ProgramInput wide = floats({100}, 0);
  const ProgramInput narrow = floats({100}, 0, DataType::kFloat32);
  const auto exact = microbatch<double>(*makeSyntheticData({wide}, 1, 3), wide, 1, 1, 0);
  const auto rounded = microbatch<float>(*makeSyntheticData({narrow}, 1, 3), narrow, 1, 1, 0);
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_EQ(rounded[i], static_cast<float>(exact[i]));
}

TEST(SyntheticData, IsStandardNormal) {
  const ProgramInput input = floats({200000}, 0);
  const auto sample = microbatch<double>(*makeSyntheticData({input}, 1, 5), input, 1, 1, 0);
  double moments[4] = {};
  for (const double x : sample) {
    for (int p = 0; p < 4; ++p) moments[p] += std::pow(x, p + 1) / static_cast<double>(sample.size());
  }
  EXPECT_NEAR(moments[0], 0, 0.01);  // about four standard errors each
  EXPECT_NEAR(moments[1], 1, 0.015);
  EXPECT_NEAR(moments[2], 0, 0.04);
  EXPECT_NEAR(moments[3], 3, 0.1);
  double neighbours = 0;
  for (size_t i = 1; i < sample.size(); ++i) neighbours += sample[i] * sample[i - 1] / static_cast<double>(sample.size());
  EXPECT_NEAR(neighbours, 0, 0.01);
}

TEST(SyntheticData, IntegersFillTheirRangeEvenly) {
  const ProgramInput input = integers({70000}, 0, -3, 4);
  const auto sample = microbatch<int64_t>(*makeSyntheticData({input}, 1, 5), input, 1, 1, 0);
  std::vector<int> counts(7, 0);
  for (const int64_t x : sample) {
    ASSERT_GE(x, -3);
    ASSERT_LT(x, 4);
    ++counts[static_cast<size_t>(x + 3)];
  }
  for (const int count : counts) EXPECT_NEAR(count, 10000, 400);
  EXPECT_ERROR(makeSyntheticData({integers({4}, 0, 5, 5)}, 1, 0), ErrorCode::kConfiguration, "'ids'");
}

TEST(MicrobatchShape, RefusesUnequalParts) {
  EXPECT_EQ(microbatchShape(floats({8, 5}, 0), 4), (Shape{2, 5}));
  EXPECT_EQ(microbatchShape(floats({8, 5}, -1), 4), (Shape{8, 5}));
  EXPECT_ERROR(microbatchShape(floats({8, 5}, 1), 4), ErrorCode::kConfiguration, "4 equal microbatches");
}

TEST(NpzData, TakesTheNextRowsEachStepAndStartsAgain) {
  const TemporaryFolder folder;
  std::vector<int32_t> rows(8);
  std::iota(rows.begin(), rows.end(), 0);
  ASSERT_TRUE(writeNpz(folder.file("d.npz"), {{"ids.npy", npyArray("<i4", "(8,)", bytesOf(rows))}}));
  const ProgramInput input = integers({4}, 0, 0, 10);
  const auto source = openNpzData(folder.file("d.npz"), {input}, 2);
  EXPECT_EQ(microbatch<int64_t>(*source, input, 2, 1, 0), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(microbatch<int64_t>(*source, input, 2, 1, 1), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(microbatch<int64_t>(*source, input, 2, 2, 1), (std::vector<int64_t>{6, 7}));
  EXPECT_EQ(microbatch<int64_t>(*source, input, 2, 3, 0), (std::vector<int64_t>{0, 1}));
}

// The message of the Error(kConfiguration) that opening the file gives.
std::string refusal(const std::string& path, const std::vector<ProgramInput>& inputs) {
  try {
    openNpzData(path, inputs, 2);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfiguration);
    return error.message();
  }
  return "accepted";
}

TEST(NpzData, RefusesAPartialLastBatch) {
  const TemporaryFolder folder;
  ASSERT_TRUE(writeNpz(folder.file("d.npz"), {{"ids.npy", npyArray("<i4", "(6,)", bytesOf<int32_t>({0, 1, 2, 3, 4, 5}))}}));
  EXPECT_NE(refusal(folder.file("d.npz"), {integers({4}, 0, 0, 10)}).find("6 examples"), std::string::npos);
}

TEST(NpzData, RefusesArraysWithUnequalNumbersOfExamples) {
  const TemporaryFolder folder;
  ASSERT_TRUE(writeNpz(folder.file("d.npz"), {{"ids.npy", npyArray("<i4", "(4,)", bytesOf<int32_t>({0, 1, 2, 3}))},
                                              {"x.npy", npyArray("<f4", "(2,)", bytesOf<float>({0, 1}))}}));
  const std::string message = refusal(folder.file("d.npz"), {integers({2}, 0, 0, 10), floats({2}, 0)});
  EXPECT_NE(message.find("array 'ids' has 4 examples but array 'x' has 2"), std::string::npos) << message;
}

TEST(NpzData, RefusesIntegersThatTheInputCannotHold) {
  const TemporaryFolder folder;
  ASSERT_TRUE(writeNpz(folder.file("d.npz"), {{"ids.npy", npyArray("<i8", "(2,)", bytesOf<int64_t>({1, int64_t{1} << 40}))}}));
  ProgramInput input = integers({2}, 0, 0, 10);
  input.data_type = DataType::kInt32;
  EXPECT_NE(refusal(folder.file("d.npz"), {input}).find("1099511627776"), std::string::npos);
}

TEST(NpzData, CutsAnInnerAxisAndKeepsUncutInputs) {
  const TemporaryFolder folder;
  ASSERT_TRUE(writeNpz(folder.file("d.npz"), {{"x.npy", npyArray("<f4", "(2, 4)", bytesOf<float>({0, 1, 2, 3, 4, 5, 6, 7}))}}));
  const ProgramInput cut = floats({2, 4}, 1);
  EXPECT_EQ(microbatch<double>(*openNpzData(folder.file("d.npz"), {cut}, 2), cut, 2, 1, 1), (std::vector<double>{2, 3, 6, 7}));
  const ProgramInput uncut = floats({2, 4}, -1);
  EXPECT_EQ(microbatch<double>(*openNpzData(folder.file("d.npz"), {uncut}, 2), uncut, 2, 5, 1),
            (std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(NpzData, NamesWhatWasFoundAndExpected) {
  const TemporaryFolder folder;
  ASSERT_TRUE(writeNpz(folder.file("d.npz"), {{"x.npy", npyArray("<f4", "(2, 3)", bytesOf<float>({0, 1, 2, 3, 4, 5}))},
                                              {"ids.npy", npyArray("<f4", "(4,)", bytesOf<float>({0, 1, 2, 3}))}}));
  const auto open = [&](const ProgramInput& input) { openNpzData(folder.file("d.npz"), {input}, 1); };
  EXPECT_ERROR(open(floats({4, 3}, 0)), ErrorCode::kConfiguration,
               "array 'x': found float32[2,3], expected float64[4,3] (or a longer axis 0)");
  EXPECT_ERROR(open(floats({2, 4}, 0)), ErrorCode::kConfiguration, "found float32[2,3]");
  EXPECT_ERROR(open(floats({6}, 0)), ErrorCode::kConfiguration, "expected float64[6]");
  EXPECT_ERROR(open(integers({4}, 0, 0, 9)), ErrorCode::kConfiguration, "found float32[4], expected int64[4]");
  ProgramInput missing = floats({4}, 0);
  missing.name = "labels";
  EXPECT_ERROR(open(missing), ErrorCode::kMissingInput, "'labels'");
}

}  // namespace
}  // namespace pipeshard
