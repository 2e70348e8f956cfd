// Sequences of several lengths: which rows make a batch, what a batch is filled up with, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>

#include "ir/base/tensor_box.h"
#include "runtime/data/data.h"
#include "runtime/data/length_order.h"
#include "runtime/data/prefetched_data.h"
#include "runtime/data/row_lengths.h"
#include "runtime/files/random_numbers.h"
#include "tests/expect_error.h"
#include "tests/runtime/files/npz_writer.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

// --- order

constexpr size_t kLengths = 3;

std::vector<uint8_t> lengthsOf(int64_t rows, uint64_t seed) {
  std::vector<uint8_t> lengths(rows);
  for (int64_t row = 0; row < rows; ++row)
    lengths[row] = (row * row * (seed + 3) + row / 3 + seed) % kLengths;
  return lengths;
}

TEST(LengthOrderTest, EveryRowIsOnceInABatchThatIsLongEnough) {
  for (const int64_t rows : {4, 5, 17, 64, 101}) {
    for (const int64_t batch : {1, 3, 4}) {
      for (const bool drop_last : {false, true}) {
        for (const std::optional<uint64_t> seed : {std::optional<uint64_t>(), std::optional<uint64_t>(5)}) {
          const std::vector<uint8_t> lengths = lengthsOf(rows, batch);
          const LengthOrder order(lengths, kLengths, batch, drop_last, seed);
          const int64_t steps = rows / batch + (rows % batch > 0 && !drop_last ? 1 : 0);
          for (int64_t epoch = 0; epoch < 2; ++epoch) {
            std::multiset<int64_t> seen;
            for (int64_t step = epoch * steps + 1; step <= (epoch + 1) * steps; ++step) {
              const std::vector<int64_t> taken = order.rowsOf(step);
              const bool last = step == (epoch + 1) * steps && rows % batch > 0 && !drop_last;
              EXPECT_EQ(std::ssize(taken), last ? rows % batch : batch);
              EXPECT_TRUE(!last || order.lengthOf(step) == 0) << step;
              for (const int64_t row : taken) EXPECT_LE(order.lengthOf(step), lengths.at(row));
              seen.insert(taken.begin(), taken.end());
            }
            EXPECT_EQ(std::ssize(seen), drop_last ? steps * batch : rows);
            EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), seen.size());
          }
        }
      }
    }
  }
}

TEST(LengthOrderTest, OnlyRowsThatAreLeftOverGoIntoLongerBatches) {
  //                        0  1  2  3  4  5  6  7  8
  const LengthOrder order({2, 0, 2, 1, 2, 2, 1, 2, 0}, kLengths, 2, false, std::nullopt);
  const std::vector<std::pair<size_t, std::vector<int64_t>>> want = {
      {2, {0, 2}}, {2, {4, 5}}, {1, {3, 6}}, {0, {1, 8}}, {0, {7}}};
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_EQ(order.lengthOf(step), want[(step - 1) % 5].first) << step;
    EXPECT_EQ(order.rowsOf(step), want[(step - 1) % 5].second) << step;
  }
}

TEST(LengthOrderTest, AStepIsTheSameWhereverOneBegins) {
  const auto order = [] { return LengthOrder(lengthsOf(50, 1), kLengths, 4, true, 9); };
  const LengthOrder all = order();
  for (const int64_t step : {1, 7, 12, 13, 30, 2, 29}) {
    EXPECT_EQ(order().rowsOf(step), all.rowsOf(step)) << step;
    EXPECT_EQ(order().lengthOf(step), all.lengthOf(step)) << step;
  }
  EXPECT_NE(all.rowsOf(1), all.rowsOf(13));  // another epoch
}

// --- batches

// Inputs with sequences of up to 4, and of up to 2.
ProgramInput tokens(std::string name, Shape shape) {
  return {std::move(name), DataType::kInt64, std::move(shape), 0, 0, 50, AllowedIntegers{-50, 50}};
}
ProgramInput labels() {
  ProgramInput input = tokens("labels", {2, 4});
  input.allowed = {0, 50, -7};
  return input;
}
std::vector<ProgramInput> shortened(std::vector<ProgramInput> inputs, int64_t length = 2) {
  for (ProgramInput& input : inputs) {
    for (size_t axis = 1; axis < input.shape.size(); ++axis) {
      if (input.shape[axis] == 4) input.shape[axis] = length;
    }
  }
  return inputs;
}

class LengthsTest : public ::testing::Test {
 protected:
  std::unique_ptr<DataSource> open(const std::string& name, const std::string& content,
                                   const std::vector<ProgramInput>& inputs) {
    writeTextFileForTest(name, content);
    return openData(description_, inputs, {}, {shortened(inputs)});
  }
  void writeTextFileForTest(const std::string& name, const std::string& content) {
    description_.path = folder_.file(name);
    std::ofstream(description_.path) << content;
  }

  static std::vector<int64_t> read(DataSource& data, size_t input, int64_t step, Shape shape) {
    std::vector<int64_t> numbers(elementCount(shape));
    data.fill(input, step, wholeBox(shape), std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }

  TemporaryFolder folder_;
  DataDescription description_;
};

constexpr const char* kRows =
    "{\"ids\": [1, 2, 3], \"labels\": [1, 2, 3], \"mask\": [1, 1, 1]}\n"
    "{\"ids\": [4], \"labels\": [4], \"mask\": [1]}\n"
    "{\"ids\": [5, 6], \"labels\": [5, 6], \"mask\": [1, 0]}\n"
    "{\"ids\": [7, 8, 9, 10], \"labels\": [7, 8, 9, 10], \"mask\": [1, 1, 1, 1]}\n";

TEST_F(LengthsTest, RowsArePaddedByWhatTheirInputIs) {
  const auto data = open("d.jsonl", kRows, {tokens("ids", {2, 4}), labels(), tokens("mask", {2, 4})});
  EXPECT_EQ(data->sizeOf(1), (StepSize{false, 1}));
  EXPECT_EQ(data->sizeOf(2), StepSize::kWholeBatch);
  EXPECT_EQ(read(*data, 0, 1, {2, 2}), (std::vector<int64_t>{4, 0, 5, 6}));
  EXPECT_EQ(read(*data, 1, 1, {2, 2}), (std::vector<int64_t>{4, -7, 5, 6}));
  EXPECT_EQ(read(*data, 2, 1, {2, 2}), (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_EQ(read(*data, 0, 2, {2, 4}), (std::vector<int64_t>{1, 2, 3, 0, 7, 8, 9, 10}));
  EXPECT_EQ(read(*data, 1, 2, {2, 4}), (std::vector<int64_t>{1, 2, 3, -7, 7, 8, 9, 10}));
  EXPECT_EQ(data->stepsPerEpoch(), 2);
  EXPECT_NE(data->describe().find(
                "2 examples of at most 2, 2 examples of at most 4; padded: ids by 0, labels by -7 "
                "(which the loss ignores), mask by 0"),
            std::string::npos)
      << data->describe();
  // a part, as devices that cut sequences read it
  std::vector<int64_t> part(2);
  data->fill(1, 2, {{0, 3}, {2, 1}}, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, (std::vector<int64_t>{-7, 10}));
  const auto ahead =
      prefetch(open("d.jsonl", kRows, {tokens("ids", {2, 4}), labels(), tokens("mask", {2, 4})}));
  for (const int64_t step : {1, 2, 3, 4, 5}) {
    const Shape shape = {2, step % 2 == 1 ? 2 : 4};
    EXPECT_EQ(read(*ahead, 0, step, shape), read(*data, 0, step, shape));
  }
}

TEST_F(LengthsTest, PaddingCanBeSaid) {
  description_.padding = {{"ids", 49}, {"labels", 3}};
  const auto data = open("d.jsonl", kRows, {tokens("ids", {2, 4}), labels(), tokens("mask", {2, 4})});
  EXPECT_EQ(read(*data, 0, 1, {2, 2}), (std::vector<int64_t>{4, 49, 5, 6}));
  EXPECT_EQ(read(*data, 1, 1, {2, 2}), (std::vector<int64_t>{4, 3, 5, 6}));
  description_.padding = {{"words", 1}};
  EXPECT_ERROR(open("d.jsonl", kRows, {tokens("ids", {2, 4})}), ErrorCode::kUsage,
               "--pad words=1: found no input of this name with sequences; those are: ids");
  description_.padding = {{"ids", 50}};
  EXPECT_ERROR(open("d.jsonl", kRows, {tokens("ids", {2, 4})}), ErrorCode::kUsage, "integers from -50 to 49");
  ProgramInput free = tokens("ids", {2, 4});
  free.allowed.reset();
  description_.padding = {{"ids", 1e300}};
  EXPECT_ERROR(open("d.jsonl", kRows, {free}), ErrorCode::kUsage,
               "the model takes integers of 64 bits there");
  DataDescription description;
  EXPECT_ERROR(addPadding("ids", description), ErrorCode::kUsage, "INPUT=NUMBER");
  addPadding("ids=-1", description);
  EXPECT_ERROR(addPadding("ids=2", description), ErrorCode::kUsage, "padded twice");
  EXPECT_EQ(description.padding.at("ids"), -1);
}

TEST_F(LengthsTest, AxesMayBeSeveralAndAnywhere) {
  // relations of positions to each other, and vectors of two numbers
  ProgramInput pairs{"pair_mask", DataType::kFloat32, {1, 4, 4}, 0};
  ProgramInput vectors{"vectors", DataType::kFloat32, {1, 2, 4}, 0};
  const auto data =
      open("d.jsonl",
           "{\"pair_mask\": [[1, 2, 3], [4, 5, 6], [7, 8, 9]], \"vectors\": [[1, 2, 3], [4, 5, 6]]}\n"
           "{\"pair_mask\": [[1]], \"vectors\": [[1], [2]]}\n",
           {pairs, vectors});
  std::vector<float> one(16), other(8);
  data->fill(0, 1, wholeBox({1, 4, 4}), std::as_writable_bytes(std::span(one)));
  EXPECT_EQ(one, (std::vector<float>{1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 9, 0, 0, 0, 0, 0}));
  data->fill(1, 1, wholeBox({1, 2, 4}), std::as_writable_bytes(std::span(other)));
  EXPECT_EQ(other, (std::vector<float>{1, 2, 3, 0, 4, 5, 6, 0}));
  EXPECT_EQ(data->lengthOf(2), 1U);
  std::vector<float> of_two(4);
  data->fill(1, 2, wholeBox({1, 2, 2}), std::as_writable_bytes(std::span(of_two)));
  EXPECT_EQ(of_two, (std::vector<float>{1, 0, 2, 0}));
}

TEST_F(LengthsTest, ArraysOfOneLengthAreBatchesOfTheShortestThatHoldsThem) {
  const std::vector<ProgramInput> inputs = {tokens("ids", {2, 4}), labels()};
  const auto openArray = [&](int64_t rows, int64_t length) {
    std::vector<int64_t> numbers(rows * length);
    std::iota(numbers.begin(), numbers.end(), 1);
    const std::string array = npyArray("<i8", fmt::format("({}, {})", rows, length), bytesOf(numbers));
    description_.path = folder_.file("d.npz");
    writeNpz(description_.path, {{"ids.npy", array}, {"labels.npy", array}});
    return openData(description_, inputs, {}, {shortened(inputs)});
  };
  const auto two = openArray(4, 2);
  EXPECT_EQ(two->lengthOf(1), 1U);
  EXPECT_EQ(read(*two, 0, 2, {2, 2}), (std::vector<int64_t>{5, 6, 7, 8}));
  EXPECT_EQ(two->describe().find("padded"), std::string::npos) << two->describe();
  const auto three = openArray(2, 3);
  EXPECT_EQ(three->lengthOf(1), 0U);
  EXPECT_EQ(read(*three, 1, 1, {2, 4}), (std::vector<int64_t>{1, 2, 3, -7, 4, 5, 6, -7}));
  EXPECT_EQ(openArray(2, 4)->lengthOf(1), 0U);
  // a last batch has the longest sequences
  description_.end.last_batch = 1;
  const auto odd = openArray(3, 2);
  EXPECT_EQ(odd->sizeOf(1), (StepSize{false, 1}));
  EXPECT_EQ(odd->sizeOf(2), StepSize::kLastBatch);
  std::vector<int64_t> last(4);
  odd->fill(1, 2, {{0, 0}, {1, 4}}, std::as_writable_bytes(std::span(last)));
  EXPECT_EQ(last, (std::vector<int64_t>{5, 6, -7, -7}));
  EXPECT_ERROR(openArray(4, 5), ErrorCode::kConfiguration,
               "the sequence has 5 elements, but the plan's longest");
  description_.truncate = true;
  EXPECT_EQ(read(*openArray(2, 5), 0, 1, {2, 4}), (std::vector<int64_t>{1, 2, 3, 4, 6, 7, 8, 9}));
}

// --- documents of tokens

// Five: rows 1 2 3 4 and 5 0; 6 7 0; none, as it is one token; 8 9 10 0; 12 0.
class DocumentsTest : public LengthsTest {
 protected:
  DocumentsTest() {
    const std::vector<uint16_t> tokens = {1, 2, 3, 4, 5, 0, 6, 7, 0, 0, 8, 9, 10, 0, 12, 0};
    writeTextFileForTest("d.u16", bytesOf(tokens));
    description_.end_of_text = 0;
    description_.end.last_batch = 1;
    mask_.data_type = DataType::kFloat32;
  }

  ProgramInput ids_ = tokens("ids", {2, 4}), mask_ = tokens("mask", {2, 4});
  std::vector<ProgramInput> inputs_ = {ids_, labels(), tokens("positions", {2, 4})};
};

TEST_F(DocumentsTest, AreRowsThatArePadded) {
  inputs_.push_back(mask_);
  const auto data = openData(description_, inputs_);
  EXPECT_EQ(data->stepsPerEpoch(), 3);
  EXPECT_EQ(read(*data, 0, 1, {2, 4}), (std::vector<int64_t>{1, 2, 3, 4, 5, 0, 0, 0}));
  EXPECT_EQ(read(*data, 1, 1, {2, 4}), (std::vector<int64_t>{1, 2, 3, 4, 5, 0, -7, -7}));
  EXPECT_EQ(read(*data, 2, 1, {2, 4}), (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 0, 0}));
  std::vector<float> mask(8);
  data->fill(3, 1, wholeBox({2, 4}), std::as_writable_bytes(std::span(mask)));
  EXPECT_EQ(mask, (std::vector<float>{1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(read(*data, 0, 2, {2, 4}), (std::vector<int64_t>{6, 7, 0, 0, 8, 9, 10, 0}));
  EXPECT_TRUE(data->isLastBatch(3));
  EXPECT_EQ(read(*data, 1, 3, {1, 4}), (std::vector<int64_t>{12, 0, -7, -7}));
  EXPECT_NE(
      data->describe().find("d.u16, documents end with 0: 16 tokens (uint16) in 5 documents, which are 5 "
                            "rows of at most 4; left out: 1 row of one token; ids: the row; labels: "),
      std::string::npos)
      << data->describe();
  EXPECT_EQ(outlineData(description_, inputs_).last_batch, 1);
  // every row once, in an order of each epoch
  description_.shuffle = true;
  const auto shuffled = openData(description_, inputs_);
  std::multiset<int64_t> firsts;
  for (const int64_t step : {1, 2, 3}) {
    const int64_t rows = step == 3 ? 1 : 2;
    const std::vector<int64_t> batch = read(*shuffled, 0, step, {rows, 4});
    for (int64_t row = 0; row < rows; ++row) firsts.insert(batch[row * 4]);
  }
  EXPECT_EQ(firsts, (std::multiset<int64_t>{1, 5, 6, 8, 12}));
}

TEST_F(DocumentsTest, GoIntoTheBatchesOfTheirLength) {
  const auto data = openData(description_, inputs_, {}, {shortened(inputs_)});
  EXPECT_EQ(data->sizeOf(1), StepSize::kWholeBatch);
  EXPECT_EQ(data->sizeOf(2), (StepSize{false, 1}));
  EXPECT_EQ(data->sizeOf(3), StepSize::kLastBatch);
  EXPECT_EQ(read(*data, 0, 1, {2, 4}), (std::vector<int64_t>{1, 2, 3, 4, 6, 7, 0, 0}));
  EXPECT_EQ(read(*data, 1, 1, {2, 4}), (std::vector<int64_t>{1, 2, 3, 4, 6, 7, 0, -7}));
  EXPECT_EQ(read(*data, 0, 2, {2, 2}), (std::vector<int64_t>{5, 0, 12, 0}));
  EXPECT_EQ(read(*data, 0, 3, {1, 4}), (std::vector<int64_t>{8, 9, 10, 0}));
  EXPECT_NE(data->describe().find("2 examples of at most 2, 3 examples of at most 4"), std::string::npos)
      << data->describe();
}

TEST_F(DocumentsTest, ShiftedLabelsAreOfTheSameDocument) {
  description_.shift_labels = true;
  const auto data = openData(description_, inputs_);
  EXPECT_EQ(read(*data, 0, 1, {2, 4}), (std::vector<int64_t>{1, 2, 3, 4, 5, 0, 0, 0}));
  EXPECT_EQ(read(*data, 1, 1, {2, 4}), (std::vector<int64_t>{2, 3, 4, 5, 0, -7, -7, -7}));
  EXPECT_EQ(read(*data, 0, 2, {2, 4}), (std::vector<int64_t>{6, 7, 0, 0, 8, 9, 10, 0}));
  EXPECT_EQ(read(*data, 1, 2, {2, 4}), (std::vector<int64_t>{7, 0, -7, -7, 9, 10, 0, -7}));
  EXPECT_NE(data->describe().find("5 rows of at most 4; left out: 1 row of one token"), std::string::npos);
}

TEST_F(DocumentsTest, WhatCannotBeIsNamed) {
  const std::vector<ProgramInput> unmasked = {ids_, tokens("labels", {2, 4})};
  EXPECT_ERROR(openData(description_, unmasked), ErrorCode::kConfiguration,
               "has rows that must be padded, which would change the loss");
  description_.end_of_text = 99;
  EXPECT_ERROR(openData(description_, inputs_), ErrorCode::kConfiguration,
               "d.u16: none of its 16 tokens is 99, which --end-of-text says ends a document");
  description_.end_of_text = 70'000;
  EXPECT_ERROR(openData(description_, inputs_), ErrorCode::kUsage, "are from 0 to 65535");
  writeTextFileForTest("ends.u16", bytesOf(std::vector<uint16_t>{0, 0}));
  description_.end_of_text = 0;
  EXPECT_ERROR(openData(description_, inputs_), ErrorCode::kConfiguration,
               "its 2 documents have one token each");
  writeTextFileForTest("d.jsonl", kRows);
  EXPECT_ERROR(openData(description_, inputs_), ErrorCode::kUsage,
               "--end-of-text goes with a file of tokens (.u16, .bin, .u32)");
  description_.path = "";
  EXPECT_ERROR(openData(description_, inputs_), ErrorCode::kUsage, "--end-of-text goes with --data");
}

TEST_F(LengthsTest, SyntheticStepsTakeTurnsAndDrawnNumbersHaveTheirShape) {
  ProgramInput drawn{"drop", DataType::kFloat32, {2, 4}, 0};
  drawn.drawn = RandomNumbers{};
  const std::vector<ProgramInput> inputs = {tokens("ids", {2, 4}), drawn};
  DataDescription description;
  description.end.last_batch = 1;
  const auto data = openData(description, inputs, {}, {shortened(inputs)});
  for (const int64_t step : {1, 4}) {
    EXPECT_EQ(data->sizeOf(step), StepSize::kWholeBatch);
    EXPECT_EQ(data->sizeOf(step + 1), StepSize::kLastBatch);
    EXPECT_EQ(data->sizeOf(step + 2), (StepSize{false, 1}));
  }
  std::vector<float> got(4), want(4);
  data->fill(1, 3, wholeBox({2, 2}), std::as_writable_bytes(std::span(got)));
  writeRandomNumbers(shortened(inputs)[1], 0, 3, wholeBox({2, 2}), std::as_writable_bytes(std::span(want)));
  EXPECT_EQ(got, want);
}

TEST_F(LengthsTest, WhatCannotBeIsNamed) {
  const std::vector<ProgramInput> inputs = {tokens("ids", {1, 4}), tokens("labels", {1, 4})};
  const auto refused = [&](const std::string& rows, const std::string& message) {
    EXPECT_ERROR(open("d.jsonl", rows, inputs), ErrorCode::kConfiguration, message);
  };
  refused(
      "{\"ids\": [1, 2, 3, 4], \"labels\": [1, 2, 3, 4]}\n{\"ids\": [1, 2, 3, 4, 5], \"labels\": [1]}\n",
      "d.jsonl, line 2, input 'ids': the sequence has 5 elements, but the plan's longest sequences have 4");
  refused("{\"ids\": [], \"labels\": []}\n", "line 1, input 'ids': the sequence is empty");
  refused("{\"ids\": 3, \"labels\": [1]}\n", "line 1: input 'ids': found 3, expected a list");
  refused("{\"ids\": [1, 2], \"labels\": [1]}\n",
          "example 1: 'ids' has a length of 2, but 'labels' one of 1; an example has one length");
  refused(
      "{\"ids\": [1], \"labels\": [1]}\n",
      "has rows that must be padded, which would change the loss: no input of the model is a mask, and none "
      "has labels that its loss ignores (inputs with sequences: ids, labels)");
  EXPECT_NO_THROW(open("d.jsonl", "{\"ids\": [1, 2], \"labels\": [1, 2]}\n", inputs));
  const ProgramInput ids = tokens("ids", {1, 4});
  EXPECT_EQ(outlineData(description_, {ids}, {shortened({ids})}).last_batch, 0);

  DataDescription one;
  one.path = description_.path;
  one.truncate = true;
  EXPECT_ERROR(openData(one, inputs), ErrorCode::kUsage, "--truncate goes with a plan for sequences");
  one.path = "";
  EXPECT_ERROR(openData(one, inputs, {}, {shortened(inputs)}), ErrorCode::kUsage,
               "--truncate goes with --data");
}

}  // namespace
}  // namespace pipeshard
