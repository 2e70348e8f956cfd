#include "runtime/files/weight_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;

// A program that reads bytes [offset, offset + length) of the file.
Program reader(const std::string& path, uint64_t offset, uint64_t length) {
  Program program;
  Buffer& buffer = program.buffers.emplace_back();
  buffer.name = "w";
  buffer.source = WeightReference{path, offset, length};
  return program;
}

void writeByte(const std::string& path, uint64_t offset, char byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(byte);
}

struct Weights {
  TemporaryFolder folder;
  std::string path = folder.file("w.data");
  explicit Weights(uint64_t bytes = 1000) {
    std::ofstream(path).close();
    fs::resize_file(path, bytes);  // sparse
  }
};

TEST(WeightCheck, RecordsTheEndOfWhatAllProgramsRead) {
  const Weights weights;
  const Program first = reader(weights.path, 0, 16);
  const Program second = reader(weights.path, 900, 100);
  const std::vector<WeightFile> files = recordWeightFiles({&first, &second});
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].path, weights.path);
  EXPECT_EQ(files[0].needed_bytes, 1000u);
  EXPECT_EQ(weightFilesFromJson(weightFilesToJson(files)), files);
}

TEST(WeightCheck, NoticesEveryByteOfASmallFile) {
  const Weights weights;
  const Program program = reader(weights.path, 0, 16);
  const std::vector<WeightFile> files = recordWeightFiles({&program});
  for (const uint64_t place : {uint64_t{0}, uint64_t{501}, uint64_t{999}}) {
    EXPECT_NO_THROW(checkWeightFiles(files));
    writeByte(weights.path, place, 1);
    EXPECT_ERROR(checkWeightFiles(files), ErrorCode::kConfiguration,
                 weights.path + " has other content: it changed since planning");
    writeByte(weights.path, place, 0);
  }
}

TEST(WeightCheck, NoticesOtherContentOfALargeFile) {
  const Weights weights(uint64_t{3} << 30);
  const Program program = reader(weights.path, 0, 16);
  const std::vector<WeightFile> files = recordWeightFiles({&program});
  EXPECT_NO_THROW(checkWeightFiles(files));
  writeByte(weights.path, (uint64_t{3} << 30) - 1, 1);
  EXPECT_ERROR(checkWeightFiles(files), ErrorCode::kConfiguration, "changed since planning");
  writeByte(weights.path, (uint64_t{3} << 30) - 1, 0);
  std::fstream file(weights.path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(1'000'000'000);
  file << std::string(4'000'000, 'x');  // of a model with hundreds of layers, one
  file.close();
  EXPECT_ERROR(checkWeightFiles(files), ErrorCode::kConfiguration, "changed since planning");
}

// Between the samples: it cannot be seen, but that the file is a later one is said.
TEST(WeightCheck, SaysWhichLargeFileWasWrittenAfterTheRecord) {
  const Weights weights(uint64_t{1} << 30);
  const Program program = reader(weights.path, 0, 16);
  const TemporaryFolder plan;
  std::ofstream(plan.file(kWeightFilesName)) << weightFilesToJson(recordWeightFiles({&program}));
  std::vector<std::string> notices;
  const auto check = [&] {
    checkWeightFiles(plan.path(), [&](const std::string& text) { notices.push_back(text); });
  };
  fs::last_write_time(weights.path, fs::last_write_time(plan.file(kWeightFilesName)) - std::chrono::hours(1));
  check();
  EXPECT_TRUE(notices.empty());
  writeByte(weights.path, 500'000, 1);
  fs::last_write_time(weights.path, fs::last_write_time(plan.file(kWeightFilesName)) + std::chrono::hours(1));
  check();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_NE(notices[0].find(weights.path + " was written after the plan was made"), std::string::npos);
}

TEST(WeightCheck, AcceptsACopyWithAnotherTime) {
  const Weights weights;
  const Program program = reader(weights.path, 0, 16);
  const std::vector<WeightFile> files = recordWeightFiles({&program});
  fs::last_write_time(weights.path, fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_NO_THROW(checkWeightFiles(files));
}

TEST(WeightCheck, SaysWhatIsMissingOrCutOff) {
  const Weights weights;
  const Program program = reader(weights.path, 984, 16);
  const std::vector<WeightFile> files = recordWeightFiles({&program});
  fs::resize_file(weights.path, 999);
  EXPECT_ERROR(checkWeightFiles(files), ErrorCode::kConfiguration,
               "it had 1000 bytes and has 999 now; plan again");
  fs::remove(weights.path);
  EXPECT_ERROR(checkWeightFiles(files), ErrorCode::kMissingInput, weights.path + " does not exist");
}

TEST(WeightCheck, OfAFileThatCameAfterPlanningOnlyTheLengthCounts) {
  const Weights weights;
  fs::remove(weights.path);
  const Program program = reader(weights.path, 984, 16);
  const std::vector<WeightFile> files = recordWeightFiles({&program});
  EXPECT_FALSE(files.at(0).content.has_value());
  EXPECT_EQ(weightFilesFromJson(weightFilesToJson(files)), files);
  EXPECT_ERROR(checkWeightFiles(files), ErrorCode::kMissingInput, "does not exist");
  std::ofstream(weights.path) << std::string(999, 'x');
  EXPECT_ERROR(checkWeightFiles(files), ErrorCode::kMissingInput,
               "has 999 bytes, but the model's weights need 1000");
  std::ofstream(weights.path) << std::string(1001, 'x');
  EXPECT_NO_THROW(checkWeightFiles(files));
}

TEST(WeightCheck, NamesTheFieldOfADamagedRecord) {
  const TemporaryFolder folder;
  EXPECT_NO_THROW(checkWeightFiles(folder.path()));  // nothing recorded
  std::ofstream(folder.file("weights.json")) << R"({"version": 1, "files": [
    {"path": "/w", "needed_bytes": 4, "content": {"bytes": 4, "sample": "xyz"}}]})";
  EXPECT_ERROR(checkWeightFiles(folder.path()), ErrorCode::kConfiguration,
               "weights.json.files[0].content.sample");
}

}  // namespace
}  // namespace pipeshard
