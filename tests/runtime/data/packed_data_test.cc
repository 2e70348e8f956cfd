// Data whose arrays do not lie in the file as they are: .npz archives, unpacked once for several readers, and
// ONNX's test data.
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#include "runtime/data/data.h"
#include "runtime/data/unpacked_file.h"
#include "tests/expect_error.h"
#include "tests/runtime/files/npz_writer.h"
#include "tests/sanitizers.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

template <typename T>
std::vector<T> counted(int64_t count) {
  std::vector<T> numbers(count);
  std::iota(numbers.begin(), numbers.end(), T(0));
  return numbers;
}

std::vector<float> stepOf(DataSource& source, const ProgramInput& input, int64_t step, size_t index = 0) {
  std::vector<float> elements(elementCount(input.shape));
  source.fill(index, step, 0, std::as_writable_bytes(std::span(elements)));
  return elements;
}

ProgramInput input(std::string name, DataType type, Shape shape, int axis = 0) {
  return {std::move(name), type, std::move(shape), axis, 0, 0};
}

const ProgramInput kX = input("x", DataType::kFloat32, {2, 3});

// --- .npz

TEST(PackedNpz, StoredAndDeflatedAndFortranArraysGiveTheSameRows) {
  const TemporaryFolder folder;
  const std::string content = bytesOf(counted<float>(12));
  ASSERT_TRUE(writeNpz(folder.file("packed.npz"), {{"x.npy", npyArray("<f4", "(4, 3)", content)}}, true));
  ASSERT_TRUE(writeNpz(folder.file("stored.npz"), {{"x.npy", npyArray("<f4", "(4, 3)", content)}}, false));
  const std::string columns = bytesOf(std::vector<float>{0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11});
  for (const bool compress : {true, false}) {
    const std::string name = compress ? "packed_columns.npz" : "stored_columns.npz";
    ASSERT_TRUE(writeNpz(folder.file(name), {{"x.npy", npyArray("<f4", "(4, 3)", columns, true)}}, compress));
  }
  for (const char* name : {"packed.npz", "stored.npz", "packed_columns.npz", "stored_columns.npz"}) {
    const auto data = openData({folder.file(name)}, {kX});
    EXPECT_EQ(stepOf(*data, kX, 2), (std::vector<float>{6, 7, 8, 9, 10, 11})) << name;
  }
}

TEST(PackedNpz, IsUnpackedOnceForAllReaders) {
  const TemporaryFolder folder;
  const int64_t rows = 200'000;
  const ProgramInput wide = input("x", DataType::kFloat32, {2, 16});
  ASSERT_TRUE(writeNpz(folder.file("d.npz"),
                       {{"x.npy", npyArray("<f4", "(200000, 16)", bytesOf(counted<float>(rows * 16)))},
                        {"other.npy", npyArray("<f4", "(200000, 16)", bytesOf(counted<float>(rows * 16)))}}));
  const Descriptor shared = makeUnpackedFile();
  DataDescription description{folder.file("d.npz")};
  description.unpacked_descriptor = shared.get();
  std::vector<std::vector<float>> got(6);
  std::vector<std::thread> readers;
  for (std::vector<float>& one : got)
    readers.emplace_back([&] { one = stepOf(*openData(description, {wide}), wide, rows / 2); });
  for (std::thread& reader : readers) reader.join();
  for (const std::vector<float>& one : got) {
    EXPECT_EQ(one.front(), float(rows - 2) * 16);
    EXPECT_EQ(one, got.front());
  }
  struct stat status {};
  ASSERT_EQ(::fstat(shared.get(), &status), 0);
  const int64_t array_bytes = rows * 16 * 4;
  EXPECT_GE(status.st_blocks * 512, array_bytes);
  EXPECT_LT(status.st_blocks * 512, array_bytes + 100'000);  // once, and not the other array
}

TEST(PackedNpz, ALargeStoredArrayTakesNoMemory) {
  SKIP_UNDER_SANITIZERS("their shadow of the memory counts as resident");
  const TemporaryFolder folder;
  const int64_t rows = 4'000'000;  // 128 MB
  ASSERT_TRUE(writeNpz(folder.file("d.npz"),
                       {{"x.npy", npyArray("<f8", "(4000000, 4)", std::string(rows * 32, '\0'))}}, false));
  const auto residentKilobytes = [] {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      long number = 0;
      if (word == "VmRSS:" && status >> number) return number;
    }
    return -1L;
  };
  const ProgramInput wide = input("x", DataType::kFloat32, {8, 4});
  const long before = residentKilobytes();
  const auto data = openData({folder.file("d.npz")}, {wide});
  for (int64_t step = 1; step < 400'000; step += 100) stepOf(*data, wide, step);
  EXPECT_LT(residentKilobytes() - before, 20'000);
}

TEST(PackedNpz, DamageIsFoundBeforeTheFirstStep) {
  const TemporaryFolder folder;
  const std::string path = folder.file("d.npz");
  for (const bool compress : {true, false}) {
    ASSERT_TRUE(
        writeNpz(path, {{"x.npy", npyArray("<f4", "(40, 3)", bytesOf(counted<float>(120)))}}, compress));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(path) / 2));
    file.write("damage", 6);
    file.close();
    EXPECT_ERROR(openData({path}, {kX}), ErrorCode::kBadModel, "d.npz");
  }
  ASSERT_TRUE(writeNpz(path, {{"x.npy", npyArray("<f4", "(4, 3)", bytesOf(counted<float>(12)))}}));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 30);
  EXPECT_ERROR(openData({path}, {kX}), ErrorCode::kBadModel, "d.npz cannot be read as .npz");
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_ERROR(openData({path}, {kX}), ErrorCode::kBadModel, "d.npz cannot be read as .npz");
}

// --- ONNX's test data

std::string varint(uint64_t number) {
  std::string bytes;
  for (; number > 127; number >>= 7) bytes += static_cast<char>(number | 0x80);
  return bytes + static_cast<char>(number);
}

// A TensorProto: dims (1), data_type (2), name (8), raw_data (9).
std::string tensorProto(const std::string& name, int type, const std::vector<int64_t>& shape,
                        const std::string& content) {
  std::string bytes;
  for (const int64_t size : shape) bytes += '\x08' + varint(size);
  bytes += '\x10' + varint(type);
  if (!name.empty()) bytes += '\x42' + varint(name.size()) + name;
  return bytes + '\x4a' + varint(content.size()) + content;
}

constexpr int kFloatProto = 1, kInt64Proto = 7;

class OnnxTestDataTest : public ::testing::Test {
 protected:
  // x: rows of three floats, counted from `first` on; ids: as many integers.
  void writeSet(int number, int64_t rows, float first, bool named) const {
    std::vector<float> x(rows * 3);
    std::iota(x.begin(), x.end(), first);
    std::vector<int64_t> ids(rows, number);
    const std::string set = fmt::format("d/test_data_set_{}/", number);
    folder_.write(set + (named ? "input_1.pb" : "input_0.pb"),
                  tensorProto(named ? "x" : "", kFloatProto, {rows, 3}, bytesOf(x)));
    folder_.write(set + (named ? "input_0.pb" : "input_1.pb"),
                  tensorProto(named ? "ids" : "", kInt64Proto, {rows}, bytesOf(ids)));
    folder_.write(set + "output_0.pb", "not looked at");
  }
  auto open(const std::string& name = "d") const { return openData({folder_.file(name)}, {kX, ids_}); }

  TemporaryFolder folder_;
  ProgramInput ids_ = input("ids", DataType::kInt64, {2});
};

TEST_F(OnnxTestDataTest, SetsFollowEachOtherByNameOrOrder) {
  for (const bool named : {true, false}) {
    std::filesystem::remove_all(folder_.file("d"));
    writeSet(0, 2, 0, named);
    writeSet(1, 1, 6, named);
    writeSet(10, 1, 9, named);  // behind 1, as a number
    const auto data = open();
    EXPECT_EQ(data->stepsPerEpoch(), 2);
    EXPECT_EQ(stepOf(*data, kX, 2), (std::vector<float>{6, 7, 8, 9, 10, 11}));
    std::vector<int64_t> ids(2);
    data->fill(1, 2, 0, std::as_writable_bytes(std::span(ids)));
    EXPECT_EQ(ids, (std::vector<int64_t>{1, 10}));
    EXPECT_EQ(outlineData({folder_.file("d")}, {input("x", DataType::kUndefined, {3, 3})}).last_batch, 1);
  }
  const auto one = open("d/test_data_set_0");
  EXPECT_EQ(stepOf(*one, kX, 1), counted<float>(6));
}

TEST_F(OnnxTestDataTest, InputsWithoutABatchAreTheSameInEverySet) {
  writeSet(0, 2, 0, true);
  writeSet(1, 2, 6, true);
  ids_.axis = -1;
  EXPECT_ERROR(open(), ErrorCode::kConfiguration,
               "test_data_set_1/input_0.pb: 'ids' has no batch axis, so it is the same in every step");
}

TEST_F(OnnxTestDataTest, BadFilesAreOneSentence) {
  writeSet(0, 2, 0, true);
  const auto with = [&](const std::string& bytes) {
    folder_.write("d/test_data_set_0/input_1.pb", bytes);
    open();
  };
  const std::string good = tensorProto("x", kFloatProto, {2, 3}, bytesOf(counted<float>(6)));
  EXPECT_NO_THROW(with(good));
  EXPECT_ERROR(with(""), ErrorCode::kBadModel, "input_1.pb is empty; expected a tensor");
  EXPECT_ERROR(with(good.substr(0, good.size() - 3)), ErrorCode::kBadModel,
               "input_1.pb holds no tensor (TensorProto)");
  EXPECT_ERROR(with("hello"), ErrorCode::kBadModel, "input_1.pb holds no tensor (TensorProto)");
  EXPECT_ERROR(with(tensorProto("x", kFloatProto, {2, 3}, bytesOf(counted<float>(5)))), ErrorCode::kBadModel,
               "input_1.pb holds 20 bytes, but its type and shape need 24");
  EXPECT_ERROR(with(tensorProto("x", 8, {2, 3}, "")), ErrorCode::kBadModel, "elements are of type STRING");
  EXPECT_ERROR(with(tensorProto("x", kInt64Proto, {2, 3}, bytesOf(counted<int64_t>(6)))),
               ErrorCode::kConfiguration, "array 'x': found int64[2,3], expected float32[2,3]");
  EXPECT_ERROR(with(tensorProto("x", kFloatProto, {3, 3}, bytesOf(counted<float>(9)))),
               ErrorCode::kConfiguration, "array 'x' has 3 examples");
  EXPECT_ERROR(with(tensorProto("z", kFloatProto, {2, 3}, bytesOf(counted<float>(6)))),
               ErrorCode::kMissingInput, "holds no tensor 'x'; it holds: ids, z");
  with(good);
  ids_.allowed = AllowedIntegers{1, 5, {}};
  EXPECT_ERROR(open(), ErrorCode::kConfiguration, "array 'ids', row 0: found 0 at [0]");
  ids_.allowed.reset();
  writeSet(1, 2, 6, true);
  folder_.write("d/test_data_set_1/input_1.pb",
                tensorProto("x", kFloatProto, {2, 4}, bytesOf(counted<float>(8))));
  EXPECT_ERROR(open(), ErrorCode::kConfiguration,
               "test_data_set_1/input_1.pb: found float32[2,4], but the first set has float32[2,3]");
  std::filesystem::remove(folder_.file("d/test_data_set_1/input_1.pb"));
  EXPECT_ERROR(open(), ErrorCode::kMissingInput, "there is no file");
}

}  // namespace
}  // namespace pipeshard
