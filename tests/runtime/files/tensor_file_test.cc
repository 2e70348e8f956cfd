#include "runtime/files/tensor_file.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

#include <fmt/format.h>

#include "runtime/files/posix_file.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

void writeBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string readBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string safetensors(const std::string& header, const std::string& data) {
  uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + data;
}

TEST(TensorFile, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  const std::vector<float> numbers{1.5f, -2, 3, 0.25f, 1e30f, -0.0f};
  const std::vector<int64_t> scalar{-7};
  const std::vector<TensorView> tensors{{"w \"quoted\"/ü", DataType::kFloat32, {2, 3}, numbers.data()},
                                        {"empty", DataType::kFloat64, {0, 4}, nullptr},
                                        {"a", DataType::kInt64, {}, scalar.data()}};
  writeTensorFile(folder.file("t.safetensors"), tensors, {{"step", "3"}}, true);
  const TensorFile file = TensorFile::open(folder.file("t.safetensors"));
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.metadata().at("step"), "3");
  const TensorEntry* entry = file.find("w \"quoted\"/ü");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->shape, (Shape{2, 3}));
  EXPECT_EQ(entry->offset % 8, 0u);
  EXPECT_EQ(std::memcmp(file.read(*entry).data(), numbers.data(), 24), 0);
  EXPECT_EQ(file.read(*file.find("a")).size(), 8u);
  EXPECT_TRUE(file.read(*file.find("empty")).empty());
  EXPECT_EQ(file.find("b"), nullptr);
}

TEST(TensorFile, IsWrittenTheSameTwice) {
  const TemporaryFolder folder;
  const double number = 4;
  const std::vector<TensorView> tensors{{"z", DataType::kFloat64, {1}, &number},
                                        {"a", DataType::kFloat64, {}, &number}};
  writeTensorFile(folder.file("1"), tensors);
  writeTensorFile(folder.file("2"), tensors);
  EXPECT_EQ(readBytes(folder.file("1")), readBytes(folder.file("2")));
}

TEST(TensorFile, RefusesTypesThatSafetensorsDoesNotHave) {
  const TemporaryFolder folder;
  const uint8_t number = 4;
  EXPECT_ERROR(writeTensorFile(folder.file("t"), {{{"scale", DataType::kFloat8E4M3FNUZ, {1}, &number}}}),
               ErrorCode::kBadModel, "no type float8_e4m3fnuz, which tensor 'scale' has");
}

TEST(TensorFile, LeavesNoTemporaryAndKeepsTheOldFileWhenItCannotWrite) {
  const TemporaryFolder folder;
  const double number = 4;
  const std::vector<TensorView> tensors{{"z", DataType::kFloat64, {1}, &number}};
  EXPECT_ERROR(writeTensorFile(folder.file("no/such/folder/t"), tensors), ErrorCode::kDiskFull,
               "no/such/folder/t");
  std::filesystem::create_directory(folder.file("taken"));
  EXPECT_ERROR(writeTensorFile(folder.file("taken"), tensors), ErrorCode::kDiskFull, "taken");
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_EQ(entry.path().filename(), "taken");
}

// A file size limit fails in write() as a full disk does, and needs no privileges.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : previous_handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &previous_);
    struct rlimit limit = previous_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &previous_);
    signal(SIGXFSZ, previous_handler_);
  }

 private:
  struct rlimit previous_ {};
  sighandler_t previous_handler_;
};

// Whoever can write the folder may wait there for the file that is written next.
TEST(PendingFile, FollowsNoLinkThatSomebodyHasPrepared) {
  const TemporaryFolder folder;
  const std::string path = folder.file("t.safetensors"), other = folder.write("other", "kept");
  std::filesystem::create_symlink(other, fmt::format("{}.tmp.{}", path, ::getpid()));
  PendingFile file(path);
  file.append("new", 3);
  file.commit(false);
  EXPECT_EQ(readBytes(path), "new");
  EXPECT_EQ(readBytes(other), "kept");
}

TEST(TensorFile, ReportsAFullDiskAndLeavesNothing) {
  const TemporaryFolder folder;
  const std::vector<std::byte> zeros(1 << 16);
  const std::vector<TensorView> tensors{{"z", DataType::kUint8, {1 << 16}, zeros.data()}};
  const FileSizeLimit limit(4096);
  EXPECT_ERROR(writeTensorFile(folder.file("big"), tensors), ErrorCode::kDiskFull, "cannot write");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

struct Malformed {
  const char* name;
  std::string bytes;
  const char* message;
};

class MalformedTensorFile : public testing::TestWithParam<Malformed> {};

TEST_P(MalformedTensorFile, IsRefusedByName) {
  const TemporaryFolder folder;
  writeBytes(folder.file("bad"), GetParam().bytes);
  EXPECT_ERROR(TensorFile::open(folder.file("bad")), ErrorCode::kBadModel, GetParam().message);
}

const std::string kData(8, 'x');
INSTANTIATE_TEST_SUITE_P(
    All, MalformedTensorFile,
    testing::Values(
        Malformed{"Empty", "", "it has 0 bytes"},
        Malformed{"HeaderLongerThanFile", std::string("\xff\xff\xff\0\0\0\0\0{}", 10), "claims a header"},
        Malformed{"HugeHeader", std::string(8, '\xff') + "{}", "claims a header"},
        Malformed{"OfTorchSave", std::string("PK\x03\x04\0\0\x08\x08 and so on", 18),
                  "save_model(module, FILE)"},
        Malformed{"IndexOfShards", "{\n  \"metadata\": {}}", "give the files that it names"},
        Malformed{"NoJson", safetensors("{\"a\":", ""), "not JSON"},
        Malformed{"List", safetensors("[]", ""), "not a JSON object"},
        Malformed{"Deep", safetensors("{\"a\":" + std::string(100000, '['), ""), "nested too deeply"},
        Malformed{
            "Duplicate",
            safetensors(
                R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                kData),
            "'a' occurs twice"},
        Malformed{"UnknownType",
                  safetensors(R"({"a":{"dtype":"F37","shape":[1],"data_offsets":[0,8]}})", kData),
                  "unknown dtype"},
        Malformed{"NoShape", safetensors(R"({"a":{"dtype":"F64","data_offsets":[0,8]}})", kData),
                  "no 'shape'"},
        Malformed{"NegativeSize",
                  safetensors(R"({"a":{"dtype":"F64","shape":[-1],"data_offsets":[0,8]}})", kData),
                  "non-negative"},
        Malformed{"SizesOverflow",
                  safetensors(R"({"a":{"dtype":"F64","shape":[4611686018427387904,4],"data_offsets":[0,8]}})",
                              kData),
                  "tensor 'a'"},
        Malformed{"OffsetsBackwards",
                  safetensors(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[8,0]}})", kData),
                  "offsets [8, 0)"},
        Malformed{"OffsetsBeyond",
                  safetensors(R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})", kData),
                  "the data has 8 bytes"},
        Malformed{"OffsetsFloat",
                  safetensors(R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8.5]}})", kData),
                  "second offset"},
        Malformed{"WrongLength",
                  safetensors(R"({"a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}})", kData),
                  "span 8 bytes"},
        Malformed{"Hole", safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", kData),
                  "no holes"},
        Malformed{
            "Overlap",
            safetensors(
                R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                kData),
            "no overlaps"},
        Malformed{"TrailingBytes",
                  safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", kData),
                  "tensors end at byte"},
        Malformed{"Metadata", safetensors(R"({"__metadata__":{"a":1}})", ""), "metadata 'a'"}),
    [](const auto& info) { return info.param.name; });

TEST(TensorFile, NamesAMissingFile) {
  const TemporaryFolder folder;
  EXPECT_ERROR(TensorFile::open(folder.file("none")), ErrorCode::kMissingInput, "none");
  EXPECT_ERROR(TensorFile::open(folder.path()), ErrorCode::kMissingInput, "not a regular file");
}

TEST(TensorFile, SurvivesRandomDamage) {
  const TemporaryFolder folder;
  const std::vector<double> numbers{1, 2, 3, 4};
  const std::vector<TensorView> tensors{{"a", DataType::kFloat64, {4}, numbers.data()},
                                        {"b", DataType::kFloat64, {2}, numbers.data()}};
  writeTensorFile(folder.file("good"), tensors, {{"k", "v"}});
  const std::string good = readBytes(folder.file("good"));
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bad = good;
    for (int i = 0; i < 3; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    if (round % 4 == 0) bad.resize(random() % bad.size());
    writeBytes(folder.file("bad"), bad);
    try {
      const TensorFile file = TensorFile::open(folder.file("bad"));
      for (const TensorEntry& entry : file.tensors()) EXPECT_LE(file.read(entry).size(), bad.size());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadModel) << error.message();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace pipeshard
