// Batches out of every kind of file but .npz (data_test.cc), their order, and what is said about bad ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "runtime/data/data.h"
#include "runtime/data/row_permutation.h"
#include "runtime/files/tensor_file.h"
#include "tests/expect_error.h"
#include "tests/runtime/files/npz_writer.h"
#include "tests/sanitizers.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

ProgramInput batchInput(std::string name, DataType type, Shape shape, int axis = 0) {
  return {std::move(name), type, std::move(shape), axis, 0, 0};
}
ProgramInput tokenInput(std::string name, Shape shape) {
  return batchInput(std::move(name), DataType::kInt64, std::move(shape));
}

void writeBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <typename T>
std::vector<T> upTo(int64_t count) {
  std::vector<T> numbers(count);
  std::iota(numbers.begin(), numbers.end(), T(0));
  return numbers;
}

// All of an input in a step.
template <typename T>
std::vector<T> batchOfStep(DataSource& source, const ProgramInput& input, int64_t step, size_t index = 0) {
  std::vector<T> elements(elementCount(input.shape));
  source.fill(index, step, 0, std::as_writable_bytes(std::span(elements)));
  return elements;
}

class ArrayDataTest : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return folder_.file(name); }
  DataDescription described(const std::string& name) const {
    DataDescription description;
    description.path = at(name);
    return description;
  }
  TemporaryFolder folder_;
};

// --- files of tokens

TEST_F(ArrayDataTest, TokensFillInputsByWhatTheyAre) {
  writeBytes(at("t.u16"), bytesOf(upTo<uint16_t>(26)));  // six windows of 4, two tokens are left
  const ProgramInput ids = tokenInput("input_ids", {3, 4}), labels = tokenInput("labels", {3, 4});
  const ProgramInput mask = batchInput("attention_mask", DataType::kFloat32, {3, 4});
  const ProgramInput positions = tokenInput("position_ids", {3, 4});
  const auto data = openData(described("t.u16"), {ids, labels, mask, positions});
  EXPECT_EQ(data->stepsPerEpoch(), 2);
  const auto second = batchOfStep<int64_t>(*data, ids, 2);
  EXPECT_EQ(second, (std::vector<int64_t>{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(batchOfStep<int64_t>(*data, labels, 2, 1), second);
  EXPECT_EQ(batchOfStep<float>(*data, mask, 2, 2), std::vector<float>(12, 1));
  EXPECT_EQ(batchOfStep<int64_t>(*data, positions, 2, 3),
            (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(batchOfStep<int64_t>(*data, ids, 3), batchOfStep<int64_t>(*data, ids, 1));
  EXPECT_EQ(data->describe(),
            at("t.u16") +
                ": 26 tokens (uint16) in windows of 4; left out: 2 tokens; input_ids: the window; labels: "
                "the same, as the model "
                "shifts them itself (--shift-labels where it does not); attention_mask: ones; position_ids: "
                "from 0 on; 6 examples, 2 steps an epoch");
}

TEST_F(ArrayDataTest, LabelsAreShiftedWhereAsked) {
  writeBytes(at("t.u32"), bytesOf(std::vector<uint32_t>{70000, 1, 2, 3, 4, 5, 6, 7, 8}));
  DataDescription description = described("t.u32");
  description.shift_labels = true;
  const ProgramInput ids = tokenInput("idx", {2, 4}), labels = tokenInput("targets", {2, 4});
  const auto data = openData(description, {ids, labels});
  EXPECT_EQ(batchOfStep<int64_t>(*data, ids, 1), (std::vector<int64_t>{70000, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(batchOfStep<int64_t>(*data, labels, 1, 1), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_NE(data->describe().find("targets: shifted by one token"), std::string::npos);
  EXPECT_ERROR(openData(description, {ids}), ErrorCode::kUsage, "no input of labels");
  // the last window has no token behind it
  writeBytes(at("t.u32"), bytesOf(upTo<uint32_t>(8)));
  EXPECT_ERROR(openData(description, {ids, labels}), ErrorCode::kConfiguration, "found uint32[1,4]");
}

TEST_F(ArrayDataTest, BadFilesOfTokensAreRefused) {
  const ProgramInput ids = tokenInput("input_ids", {2, 4});
  writeBytes(at("empty.u16"), "");
  EXPECT_ERROR(openData(described("empty.u16"), {ids}), ErrorCode::kBadModel,
               "empty.u16 is empty; expected tokens (uint16)");
  writeBytes(at("cut.u32"), std::string(37, '\0'));
  EXPECT_ERROR(openData(described("cut.u32"), {ids}), ErrorCode::kBadModel,
               "cut.u32 has 37 bytes, which is no multiple of 4: its last token is cut off");
  EXPECT_ERROR(openData(described("none.bin"), {ids}), ErrorCode::kMissingInput, "none.bin");
  writeBytes(at("short.bin"), bytesOf(upTo<uint16_t>(7)));
  EXPECT_ERROR(openData(described("short.bin"), {ids}), ErrorCode::kConfiguration,
               "short.bin, array 'input_ids': found uint16[1,4], expected int64[2,4] (or a longer axis 0)");
  writeBytes(at("t.bin"), bytesOf(upTo<uint16_t>(64)));
  EXPECT_ERROR(openData(described("t.bin"), {batchInput("input_ids", DataType::kFloat32, {2, 4})}),
               ErrorCode::kConfiguration, "found uint16[16,4], expected float32[2,4]");
  EXPECT_ERROR(openData(described("t.bin"), {ids, tokenInput("labels", {2, 3})}), ErrorCode::kConfiguration,
               "input 'labels' is 3 tokens long but 'input_ids' 4");
  EXPECT_ERROR(openData(described("t.bin"), {ids, tokenInput("pixels", {2, 4})}), ErrorCode::kConfiguration,
               "input 'pixels' is, by its name, neither ids");
  EXPECT_ERROR(openData(described("t.bin"), {ids, tokenInput("token_type_ids", {2, 4})}),
               ErrorCode::kConfiguration, "'token_type_ids'");
  EXPECT_ERROR(openData(described("t.bin"), {tokenInput("input_ids", {2, 4, 1})}), ErrorCode::kConfiguration,
               "tokens fill inputs of [batch,length]");
  EXPECT_ERROR(openData(described("t.bin"), {tokenInput("input_ids", {3, 4})}), ErrorCode::kConfiguration,
               "has 16 examples: after batches of 3 a last one of 1 is left");
}

TEST_F(ArrayDataTest, ATokenThatTheModelDoesNotKnowIsNamedWhenItIsRead) {
  std::vector<uint16_t> tokens(32, 5);
  tokens[22] = 900;  // row 5
  writeBytes(at("t.u16"), bytesOf(tokens));
  ProgramInput ids = tokenInput("input_ids", {4, 4});
  ids.allowed = AllowedIntegers{-10, 10, {}};
  const auto data = openData(described("t.u16"), {ids});
  EXPECT_NO_THROW(batchOfStep<int64_t>(*data, ids, 1));
  EXPECT_ERROR(
      batchOfStep<int64_t>(*data, ids, 2), ErrorCode::kConfiguration,
      "t.u16, array 'input_ids', row 5: found 900 at [5,2], but the model takes integers from -10 to 9");
  // a rank that reads other rows does not see it
  std::vector<int64_t> one(4);
  EXPECT_NO_THROW(data->fill(0, 2, 2, std::as_writable_bytes(std::span(one))));
}

TEST_F(ArrayDataTest, AFileThatShrinksOrGoesWhileItIsReadIsAnErrorOrNone) {
  writeBytes(at("t.u16"), bytesOf(upTo<uint16_t>(32)));
  const ProgramInput ids = tokenInput("input_ids", {4, 4});
  const auto data = openData(described("t.u16"), {ids});
  std::filesystem::remove(at("t.u16"));  // it stays open
  EXPECT_EQ(batchOfStep<int64_t>(*data, ids, 2)[15], 31);
  writeBytes(at("t.u16"), bytesOf(upTo<uint16_t>(32)));
  const auto cut = openData(described("t.u16"), {ids});
  std::filesystem::resize_file(at("t.u16"), 40);
  EXPECT_NO_THROW(batchOfStep<int64_t>(*cut, ids, 1));
  EXPECT_ERROR(batchOfStep<int64_t>(*cut, ids, 2), ErrorCode::kMissingInput, "t.u16 ends at byte 40");
}

TEST_F(ArrayDataTest, TwentyGigabytesOfTokensTakeNoMemory) {
  SKIP_UNDER_SANITIZERS("their shadow of the memory counts as resident");
  writeBytes(at("t.u16"), bytesOf(std::vector<uint16_t>(4096, 3)));
  std::error_code error;
  std::filesystem::resize_file(at("t.u16"), uintmax_t{20} << 30, error);
  if (error) GTEST_SKIP() << "no sparse files here: " << error.message();
  const ProgramInput ids = tokenInput("input_ids", {8, 512});
  DataDescription description = described("t.u16");
  description.shuffle = true;
  const auto data = openData(description, {ids});
  EXPECT_EQ(data->stepsPerEpoch(), (int64_t{20} << 30) / 2 / 512 / 8);
  const auto residentKilobytes = [] {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      long number = 0;
      if (word == "VmRSS:" && status >> number) return number;
    }
    return -1L;
  };
  const long before = residentKilobytes();
  std::vector<int64_t> batch;
  for (int64_t step = 1; step <= 2000; ++step) batch = batchOfStep<int64_t>(*data, ids, step * 700);
  EXPECT_EQ(std::count(batch.begin(), batch.end(), 0), 8 * 512);
  EXPECT_LT(residentKilobytes() - before, 20'000);
}

// --- files with an array per input

TEST_F(ArrayDataTest, AFolderOfNpyFilesIsReadByRows) {
  std::filesystem::create_directory(at("d"));
  writeBytes(at("d/x.npy"), npyArray("<f4", "(4, 3)", bytesOf(upTo<float>(12))));
  writeBytes(at("d/ids.npy"), npyArray("<i2", "(4,)", bytesOf(std::vector<int16_t>{7, 8, 9, 10})));
  const ProgramInput x = batchInput("x", DataType::kFloat64, {2, 3}), ids = tokenInput("ids", {2});
  const auto data = openData(described("d"), {x, ids});
  EXPECT_EQ(batchOfStep<double>(*data, x, 2), (std::vector<double>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(batchOfStep<int64_t>(*data, ids, 2, 1), (std::vector<int64_t>{9, 10}));
  // columns 1 and 2 of row 3
  std::vector<double> part(2);
  data->fill(0, 2, Shard{{1, 1}, {1, 2}}, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, (std::vector<double>{10, 11}));
}

TEST_F(ArrayDataTest, BadFoldersOfNpyFilesAreRefused) {
  std::filesystem::create_directory(at("d"));
  const ProgramInput x = batchInput("x", DataType::kFloat32, {2, 3});
  const auto open = [&] { openData(described("d"), {x}); };
  EXPECT_ERROR(open(), ErrorCode::kMissingInput, "holds no array 'x' (x.npy)");
  const auto write = [&](const std::string& bytes) { writeBytes(at("d/x.npy"), bytes); };
  write("");
  EXPECT_ERROR(open(), ErrorCode::kBadModel, "x.npy is not a .npy array");
  write(npyArray("<f4", "(2, 3)", bytesOf(upTo<float>(5))));
  EXPECT_ERROR(open(), ErrorCode::kBadModel,
               "x.npy is float32[2,3] (24 bytes), but 20 bytes follow its header");
  write(npyArray("<f4", "(2, 3)", bytesOf(upTo<float>(6)), true));
  EXPECT_ERROR(open(), ErrorCode::kConfiguration, "x.npy is in Fortran order");
  write(npyArray("<i4", "(2, 3)", bytesOf(upTo<int32_t>(6))));
  EXPECT_ERROR(open(), ErrorCode::kConfiguration, "array 'x': found int32[2,3], expected float32[2,3]");
  write(npyArray("<f4", "(2, 2)", bytesOf(upTo<float>(4))));
  EXPECT_ERROR(open(), ErrorCode::kConfiguration, "found float32[2,2], expected float32[2,3]");
  write(npyArray("<f4", "(0, 3)", ""));
  EXPECT_ERROR(open(), ErrorCode::kConfiguration, "found float32[0,3], expected float32[2,3]");
  write(npyArray("<f4", "(4, 3)", bytesOf(upTo<float>(12))));
  writeBytes(at("d/ids.npy"), npyArray("<i8", "(2,)", bytesOf(upTo<int64_t>(2))));
  EXPECT_ERROR(openData(described("d"), {x, tokenInput("ids", {2})}), ErrorCode::kConfiguration,
               "array 'x' has 4 examples but array 'ids' has 2");
}

TEST_F(ArrayDataTest, SafetensorsAreReadByRows) {
  const auto numbers = upTo<int32_t>(12);
  const std::vector<float> x = {0.5, 1.5, 2.5, 3.5};
  const std::vector<TensorView> tensors = {{"ids", DataType::kInt32, {4, 3}, numbers.data()},
                                           {"x", DataType::kFloat32, {4}, x.data()}};
  writeTensorFile(at("d.safetensors"), tensors);
  ProgramInput ids = tokenInput("ids", {2, 3});
  const ProgramInput found = batchInput("x", DataType::kFloat64, {2});
  const auto data = openData(described("d.safetensors"), {ids, found});
  EXPECT_EQ(batchOfStep<int64_t>(*data, ids, 2), (std::vector<int64_t>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(batchOfStep<double>(*data, found, 1, 1), (std::vector<double>{0.5, 1.5}));
  EXPECT_ERROR(openData(described("d.safetensors"), {tokenInput("labels", {2, 3})}), ErrorCode::kMissingInput,
               "holds no tensor 'labels'; it holds: ids, x");
  ids.data_type = DataType::kUint8;
  ids.allowed = AllowedIntegers{0, 11, {}};
  EXPECT_ERROR(batchOfStep<uint8_t>(*openData(described("d.safetensors"), {ids}), ids, 2),
               ErrorCode::kConfiguration, "array 'ids', row 3: found 11 at [3,2]");
  std::filesystem::resize_file(at("d.safetensors"), std::filesystem::file_size(at("d.safetensors")) - 1);
  EXPECT_ERROR(openData(described("d.safetensors"), {ids}), ErrorCode::kBadModel, "d.safetensors");
}

// A mask of attention, as numpy compares.
TEST_F(ArrayDataTest, TruthValuesAreTheIntegersZeroAndOne) {
  const std::vector<uint8_t> mask = {1, 0, 0, 1};
  const std::vector<TensorView> tensors = {{"mask", DataType::kBool, {4}, mask.data()}};
  writeTensorFile(at("d.safetensors"), tensors);
  const ProgramInput input = batchInput("mask", DataType::kInt64, {4});
  EXPECT_EQ(batchOfStep<int64_t>(*openData(described("d.safetensors"), {input}), input, 1),
            (std::vector<int64_t>{1, 0, 0, 1}));
}

TEST_F(ArrayDataTest, NumbersThatTheTypeCannotHoldAreNamedWhenTheyAreRead) {
  const std::vector<int32_t> numbers = {1, 2, 3, 300};
  const std::vector<TensorView> tensors = {{"ids", DataType::kInt32, {4}, numbers.data()}};
  writeTensorFile(at("d.safetensors"), tensors);
  const ProgramInput ids = batchInput("ids", DataType::kUint8, {2});
  const auto data = openData(described("d.safetensors"), {ids});
  EXPECT_NO_THROW(batchOfStep<uint8_t>(*data, ids, 1));
  EXPECT_ERROR(batchOfStep<uint8_t>(*data, ids, 2), ErrorCode::kConfiguration,
               "array 'ids': element [3] is 300, which uint8 cannot hold");
}

// --- tables of text

TEST_F(ArrayDataTest, CsvColumnsAreInputs) {
  writeBytes(at("d.csv"),
             "\xef\xbb\xbfid, \"x[1]\",x[0],y,y,note\r\n"
             "1,0.5,-1e-3,7,8,\"a, b\"\r\n2, 1 ,2,9,10,\n3,4,5,11,12,-\n4,6,7,13,14,\n\n");
  const ProgramInput x = batchInput("x", DataType::kFloat32, {2, 2}), y = tokenInput("y", {2, 2});
  const ProgramInput id = batchInput("id", DataType::kInt32, {2});
  const auto data = openData(described("d.csv"), {x, y, id});
  EXPECT_EQ(batchOfStep<float>(*data, x, 1), (std::vector<float>{-1e-3f, 0.5, 2, 1}));
  EXPECT_EQ(batchOfStep<int64_t>(*data, y, 2, 1), (std::vector<int64_t>{11, 12, 13, 14}));
  EXPECT_EQ(batchOfStep<int32_t>(*data, id, 2, 2), (std::vector<int32_t>{3, 4}));
  EXPECT_THAT(data->describe(), ::testing::HasSubstr("d.csv: no input takes note; the model's inputs are x, "
                                                     "y, id; 4 examples"));
}

TEST_F(ArrayDataTest, WholeNumbersMayBeWrittenWithAPoint) {
  const ProgramInput id = tokenInput("id", {2});
  writeBytes(at("d.csv"), "id\n7.0\n-1e2\n");
  writeBytes(at("d.jsonl"), "{\"id\": 7.0}\n{\"id\": -1e2}\n");
  for (const char* name : {"d.csv", "d.jsonl"})
    EXPECT_EQ(batchOfStep<int64_t>(*openData(described(name), {id}), id, 1), (std::vector<int64_t>{7, -100}));
  for (const char* number : {"7.5", "1e16", "nan", "inf"}) {
    writeBytes(at("d.csv"), fmt::format("id\n1\n{}\n", number));
    EXPECT_ERROR(openData(described("d.csv"), {id}), ErrorCode::kConfiguration,
                 fmt::format("line 3: input 'id': found '{}', expected an integer of 64 bits", number));
  }
}

TEST_F(ArrayDataTest, BadCsvFilesAreRefused) {
  const ProgramInput x = batchInput("x", DataType::kFloat32, {2}), id = tokenInput("id", {2});
  const auto open = [&](const std::string& text, const std::vector<ProgramInput>& inputs) {
    writeBytes(at("d.csv"), text);
    openData(described("d.csv"), inputs);
  };
  EXPECT_ERROR(open("", {x}), ErrorCode::kBadModel, "d.csv is empty");
  EXPECT_ERROR(open("x,id\n", {x}), ErrorCode::kConfiguration, "found float64[0], expected float32[2]");
  EXPECT_ERROR(open("x,id\n1,2\n3\n", {x}), ErrorCode::kBadModel,
               "d.csv, line 3: has 1 fields, but the first line names 2");
  EXPECT_ERROR(open("x,id\n1,2\n\n3,4\n", {x}), ErrorCode::kBadModel, "d.csv, line 3: is empty");
  EXPECT_ERROR(open("x,id\n1,2\nabc,2\n", {x}), ErrorCode::kConfiguration,
               "d.csv, line 3: input 'x': found 'abc', expected a number");
  EXPECT_ERROR(open("x,id\n1,2\n,2\n", {x}), ErrorCode::kConfiguration, "found nothing, expected a number");
  EXPECT_ERROR(open("x,id\n1,2\n1,2.5\n", {id}), ErrorCode::kConfiguration,
               "line 3: input 'id': found '2.5', expected an integer");
  EXPECT_ERROR(open("x;id\n1;2\n", {x}), ErrorCode::kMissingInput,
               "has ';', but columns are separated by commas");
  EXPECT_ERROR(open("x\tid\n1\t2\n", {x}), ErrorCode::kMissingInput, "has a tab, but columns are separated");
  for (const std::string mark : {"\xff\xfe", "\xfe\xff"})
    EXPECT_ERROR(open(mark + "x\n1\n", {x}), ErrorCode::kBadModel, "d.csv is UTF-16");
  EXPECT_ERROR(open("a,id\n1,2\n", {x}), ErrorCode::kMissingInput,
               "has no column 'x'; its columns are: a, id");
  EXPECT_ERROR(open("x,x\n1,2\n", {x}), ErrorCode::kConfiguration,
               "input 'x': found 2 columns of this name, expected 1");
  const ProgramInput wide = batchInput("x", DataType::kFloat32, {1, 3});
  EXPECT_ERROR(open("x[0],x[1]\n1,2\n", {wide}), ErrorCode::kConfiguration,
               "found 0 columns 'x[2]', expected one of each from 'x[0]' to 'x[2]'");
  EXPECT_ERROR(open("x[0],x[1],x[2]\n1,2,3\n1,,3\n", {batchInput("x", DataType::kFloat32, {2, 3})}),
               ErrorCode::kConfiguration, "d.csv, line 3: input 'x', column 'x[1]': found nothing");
  EXPECT_ERROR(open("x\n1\n", {batchInput("x", DataType::kFloat32, {3, 2}, 1)}), ErrorCode::kConfiguration,
               "with the batch on axis 1");
  ProgramInput known = id;
  known.allowed = AllowedIntegers{0, 10, {}};
  EXPECT_ERROR(open("id\n1\n2\n3\n12\n", {known}), ErrorCode::kConfiguration,
               "d.csv, array 'id', row 3: found 12 at [3]");
}

TEST_F(ArrayDataTest, JsonLinesAreExamples) {
  writeBytes(
      at("d.jsonl"),
      "{\"x\": [[0, 1.5], [2, 3]], \"id\": 1, \"more\": \"text\"}\n{\"id\": 2, \"x\": [[4, 5], [6, 7]]}\n");
  const ProgramInput x = batchInput("x", DataType::kFloat64, {2, 2, 2}), id = tokenInput("id", {2});
  const auto data = openData(described("d.jsonl"), {x, id});
  EXPECT_EQ(batchOfStep<double>(*data, x, 1), (std::vector<double>{0, 1.5, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(batchOfStep<int64_t>(*data, id, 1, 1), (std::vector<int64_t>{1, 2}));
}

TEST_F(ArrayDataTest, BadJsonLinesAreRefused) {
  const ProgramInput x = batchInput("x", DataType::kFloat32, {2, 2}), id = tokenInput("id", {2});
  const auto open = [&](const std::string& text, const ProgramInput& input) {
    writeBytes(at("d.jsonl"), text);
    openData(described("d.jsonl"), {input});
  };
  EXPECT_ERROR(open("", x), ErrorCode::kBadModel, "d.jsonl is empty");
  EXPECT_ERROR(open("{\"id\": 1}\n{\"id\":\n", id), ErrorCode::kBadModel, "line 2: is no JSON object");
  EXPECT_ERROR(open("{\"id\": 1}\n{\"x\": 1}\n", id), ErrorCode::kMissingInput, "line 2: has no key 'id'");
  EXPECT_ERROR(open("{\"id\": 1.5}\n", id), ErrorCode::kConfiguration,
               "line 1: input 'id': found 1.5, expected an integer of 64 bits");
  EXPECT_ERROR(open("{\"id\": 9223372036854775808}\n", id), ErrorCode::kConfiguration,
               "found 9223372036854775808, expected an integer of 64 bits");
  EXPECT_ERROR(open("{\"x\": [1, null]}\n", x), ErrorCode::kConfiguration, "found null, expected a number");
  EXPECT_ERROR(open("{\"x\": [1, 2, 3]}\n", x), ErrorCode::kConfiguration,
               "found a list of 3, expected a list of 2");
  EXPECT_ERROR(open("{\"x\": 1}\n", x), ErrorCode::kConfiguration, "found 1, expected a list of 2");
  EXPECT_ERROR(open("{\"x\": [1, \"2\"]}\n", x), ErrorCode::kConfiguration,
               "found a string, expected a number");
  EXPECT_ERROR(open("{\"id\": [1]}\n", id), ErrorCode::kConfiguration,
               "found a list of 1, expected an integer");
}

// --- which file, which order

TEST_F(ArrayDataTest, ThePathSaysWhatItHolds) {
  const ProgramInput x = batchInput("x", DataType::kFloat32, {2});
  writeBytes(at("d.txt"), "1 2 3");
  EXPECT_ERROR(openData(described("d.txt"), {x}), ErrorCode::kUsage,
               "d.txt: what it holds is known by its name");
  EXPECT_ERROR(openData(described("none"), {x}), ErrorCode::kMissingInput, "there is no data file");
  DataDescription synthetic;
  synthetic.shuffle = true;
  EXPECT_ERROR(openData(synthetic, {x}), ErrorCode::kUsage, "--shuffle goes with --data");
  writeBytes(at("d.csv"), "x\n1\n2\n");
  DataDescription table = described("d.csv");
  table.shift_labels = true;
  EXPECT_ERROR(openData(table, {x}), ErrorCode::kUsage, "--shift-labels goes with a file of tokens");
}

TEST_F(ArrayDataTest, TheRestOfAnEpochIsCountedInEveryFormat) {
  writeBytes(at("t.u16"), bytesOf(upTo<uint16_t>(43)));  // ten windows
  const ProgramInput mask = batchInput("attention_mask", DataType::kUndefined, {4, 4});
  EXPECT_EQ(outlineData(described("t.u16"), {mask}).last_batch, 2);
  writeBytes(at("d.csv"), "id\n1\n2\n3\n4\n5\n");
  EXPECT_EQ(outlineData(described("d.csv"), {batchInput("id", DataType::kUndefined, {4})}).last_batch, 1);
  DataDescription description = described("t.u16");
  description.end.last_batch = 2;
  const ProgramInput ids = tokenInput("input_ids", {4, 4});
  const auto data = openData(description, {ids});
  EXPECT_EQ(data->stepsPerEpoch(), 3);
  EXPECT_TRUE(data->isLastBatch(3));
  EXPECT_FALSE(data->isLastBatch(4));
  std::vector<int64_t> two_rows(8);
  data->fill(0, 3, 0, std::as_writable_bytes(std::span(two_rows)));
  EXPECT_EQ(two_rows.front(), 32);
  description.end = {0, true};
  EXPECT_EQ(openData(description, {ids})->stepsPerEpoch(), 2);
}

TEST(RowPermutationTest, HasEveryRowOnce) {
  for (const int64_t count : {1, 2, 3, 4, 5, 17, 64, 65, 1000}) {
    const RowPermutation row_at(count, 1, 0);
    std::set<int64_t> seen;
    for (int64_t place = 0; place < count; ++place) seen.insert(row_at(place));
    EXPECT_EQ(std::ssize(seen), count);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), count - 1);
  }
}

TEST(RowPermutationTest, DependsOnSeedAndEpochAndSpreadsEvenly) {
  const auto order = [](uint64_t seed, int64_t epoch) {
    const RowPermutation row_at(1000, seed, epoch);
    std::vector<int64_t> rows(1000);
    for (int64_t place = 0; place < 1000; ++place) rows[place] = row_at(place);
    return rows;
  };
  const auto first = order(1, 0);
  EXPECT_EQ(order(1, 0), first);
  for (const auto& other : {order(2, 0), order(1, 1), order(0, 1)}) {
    int same = 0;
    for (int i = 0; i < 1000; ++i) same += other[i] == first[i];
    EXPECT_LT(same, 10);  // one is expected
  }
  // where row 0 goes, over many epochs: ten bins, 400 expected in each
  std::vector<int> bins(10, 0);
  for (int64_t epoch = 0; epoch < 4000; ++epoch) ++bins[RowPermutation(1000, 3, epoch)(0) / 100];
  for (const int count : bins) EXPECT_NEAR(count, 400, 100);  // five standard deviations
}

TEST_F(ArrayDataTest, ShuffledRowsAreTheSameHoweverTheBatchIsCut) {
  writeBytes(at("d.u16"), bytesOf(upTo<uint16_t>(48)));
  DataDescription description = described("d.u16");
  description.shuffle = true;
  description.seed = 5;
  const ProgramInput ids = tokenInput("input_ids", {4, 4}), labels = tokenInput("labels", {4, 4});
  const auto data = openData(description, {ids, labels});
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> all;
    for (int64_t step = 3 * epoch + 1; step <= 3 * epoch + 3; ++step) {
      const auto batch = batchOfStep<int64_t>(*data, ids, step);
      EXPECT_EQ(batchOfStep<int64_t>(*data, labels, step, 1), batch);
      all.insert(all.end(), batch.begin(), batch.end());
      // any box, asked of a source of its own
      for (int64_t row = 0; row < 4; ++row) {
        std::vector<int64_t> part(2);
        openData(description, {ids, labels})
            ->fill(0, step, Shard{{row, 2}, {1, 2}}, std::as_writable_bytes(std::span(part)));
        EXPECT_EQ(part[0], batch[row * 4 + 2]);
        EXPECT_EQ(part[1], batch[row * 4 + 3]);
      }
    }
    for (size_t i = 0; i < all.size(); i += 4) {
      EXPECT_EQ(all[i] % 4, 0);  // a row stays a row
      EXPECT_EQ(all[i + 3], all[i] + 3);
    }
    epochs.push_back(all);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, upTo<int64_t>(48));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

TEST_F(ArrayDataTest, RowsOfAnInnerAxisAreShuffledToo) {
  std::filesystem::create_directory(at("d"));
  writeBytes(at("d/x.npy"), npyArray("<f4", "(2, 6)", bytesOf(upTo<float>(12))));
  DataDescription description = described("d");
  description.shuffle = true;
  const ProgramInput x = batchInput("x", DataType::kFloat32, {2, 3}, 1);
  const auto data = openData(description, {x});
  std::vector<float> seen;
  for (int64_t step = 1; step <= 2; ++step) {
    const auto batch = batchOfStep<float>(*data, x, step);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(batch[i] + 6, batch[3 + i]);
    seen.insert(seen.end(), batch.begin(), batch.begin() + 3);
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, upTo<float>(6));
}

TEST_F(ArrayDataTest, WhatARankDoesNotLoadIsCheckedButNotRead) {
  writeBytes(at("d.csv"), "x,id\n1,2\n3,400\n");
  const ProgramInput x = batchInput("x", DataType::kFloat32, {2});
  ProgramInput id = tokenInput("id", {2});
  id.allowed = AllowedIntegers{0, 10, {}};
  EXPECT_NO_THROW(openData(described("d.csv"), {x, id}, {true, false}));
  EXPECT_ERROR(openData(described("d.csv"), {x, id}, {false, true}), ErrorCode::kConfiguration, "found 400");
  EXPECT_ERROR(openData(described("d.csv"), {x, tokenInput("id", {2, 2})}, {true, false}),
               ErrorCode::kConfiguration, "input 'id': found 1 columns of this name, expected 2");
}

}  // namespace
}  // namespace pipeshard
