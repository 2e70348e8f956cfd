// Checkpoints of which a host has a part on its own disk.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/disks/file_pieces.h"
#include "runtime/files/tensor_file.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Rank 0 is on this host, rank 1 on host b; each holds a tensor of its own.
class LocalDisk : public ::testing::Test {
 protected:
  static CheckpointFile writeRank(const std::string& folder, int rank, const std::string& host) {
    makeFolder(folder);
    const std::vector<float> numbers(100'000, static_cast<float>(rank));
    const std::string name = checkpointFileName(RankId(rank));
    const std::vector<TensorView> tensors = {{"parameter/" + std::to_string(rank),
                                              DataType::kFloat32,
                                              {static_cast<int64_t>(numbers.size())},
                                              numbers.data()}};
    const WrittenFile written = writeTensorFile(folder + "/" + name, tensors, {}, true);
    return {name, written.bytes, written.hash, host};
  }

  // As the coordinator on host a commits it: with all that is known of both ranks.
  Checkpoint commitHere(int keep = 2, int64_t step = 3) {
    CheckpointFolder folder(here_, "job", keep);
    Checkpoint checkpoint;
    checkpoint.step = step;
    checkpoint.job = "job";
    checkpoint.files = {writeRank(folder.partialOf(step), 0, "a"),
                        writeRank(there_ + "/step-000003.partial-job", 1, "b")};
    for (const int rank : {0, 1})
      checkpoint.tensors.push_back(
          {"parameter/" + std::to_string(rank), DataType::kFloat32, {100'000}, {{rank, {0}, {100'000}}}});
    checkpoint.elsewhere = {1};
    return folder.commit(checkpoint);
  }

  static std::string contentOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryFolder folder_;
  std::string here_ = folder_.file("a");
  std::string there_ = folder_.file("b");
};

TEST_F(LocalDisk, WhatIsElsewhereIsSaidWithTheCommandThatCopiesIt) {
  commitHere();
  const Checkpoint read = readCheckpoint(here_ + "/step-000003");
  EXPECT_THAT(read.elsewhere, ElementsAre(1));
  verifyCheckpoint(read);
  EXPECT_ERROR(openTensors(read), ErrorCode::kMissingInput,
               "rank-0001.safetensors on host b (rsync -a --ignore-existing b:" + here_ + "/step-000003/");
  fs::remove(here_ + "/step-000003/rank-0000.safetensors");
  EXPECT_THAT(readCheckpoint(here_ + "/step-000003").elsewhere, ElementsAre(0, 1));
}

TEST_F(LocalDisk, TwoStayAtLeast) {
  for (const int64_t step : {1, 2, 3}) commitHere(1, step);
  EXPECT_THAT(listCheckpoints(here_), ElementsAre(here_ + "/step-000003", here_ + "/step-000002"));
}

// A crash between the coordinator's commit and the other host's: the files there have their partial name.
TEST_F(LocalDisk, AHostThatHadNotHeardOfTheCommitMakesUpForIt) {
  commitHere();
  const std::string manifest = contentOf(here_ + "/step-000003/manifest.json");
  fs::create_directories(there_ + "/step-000009.partial-dead");
  const CheckpointFolder folder(there_, "next", 2, {}, FolderLock::kPatience, manifest);
  const Checkpoint adopted = readCheckpoint(there_ + "/step-000003");
  EXPECT_THAT(adopted.elsewhere, ElementsAre(0));
  verifyCheckpoint(adopted);
  EXPECT_FALSE(fs::exists(there_ + "/step-000003.partial-job"));
  EXPECT_FALSE(fs::exists(there_ + "/step-000009.partial-dead"));
}

TEST_F(LocalDisk, AnEmptyDiskGetsTheManifestAloneAndAnotherCheckpointOfTheStepIsRefused) {
  commitHere();
  const std::string manifest = contentOf(here_ + "/step-000003/manifest.json");
  const auto adopt = [&](const std::string& text) {
    CheckpointFolder(folder_.file("c"), "next", 2, {}, FolderLock::kPatience, text);
  };
  adopt(manifest);
  EXPECT_THAT(readCheckpoint(folder_.file("c") + "/step-000003").elsewhere, ElementsAre(0, 1));
  adopt(manifest);
  Checkpoint other = checkpointFromJson(manifest);
  other.job = "other";
  EXPECT_ERROR(adopt(checkpointToJson(other)), ErrorCode::kConfiguration,
               "is not the checkpoint of that step");
}

TEST_F(LocalDisk, AFileComesInPiecesIsVerifiedAndNothingElseIsHandedOut) {
  commitHere();
  Checkpoint wanted = readCheckpoint(here_ + "/step-000003");
  FileFetch fetch(wanted, {0, 1});
  int pieces = 0;
  while (!fetch.isDone()) {
    FileWant want = fetch.want();
    want.directory = there_ + "/step-000003";  // on the other host, still under its partial name
    fetch.take(readPiece(want));
    ++pieces;
  }
  EXPECT_THAT(fetch.fetched(), ElementsAre("rank-0001.safetensors"));
  EXPECT_GE(pieces, 4);  // two of 400 KB, two refusals: there is no plan.json
  wanted = readCheckpoint(here_ + "/step-000003");
  EXPECT_TRUE(wanted.elsewhere.empty());
  verifyCheckpoint(wanted);
  FileWant want = {there_ + "/step-000003", "job", "", 0};
  for (const char* file : {"../job.key", "manifest.json", "rank-0001.safetensors.tmp"}) {
    want.file = file;
    EXPECT_TRUE(readPiece(want).contains("error")) << file;
  }
  want.directory = "/etc";
  want.file = "rank-0001.safetensors";
  EXPECT_THAT(readPiece(want).value("error", ""), HasSubstr("no file of a checkpoint"));
}

TEST_F(LocalDisk, APieceThatNobodyHasAndOneOfOtherContentAreErrors) {
  commitHere();
  const Checkpoint wanted = readCheckpoint(here_ + "/step-000003");
  FileFetch missing(wanted, {1});
  while (missing.want().file != "rank-0001.safetensors") missing.take(readPiece(missing.want()));
  EXPECT_ERROR(missing.take(readPiece(missing.want())), ErrorCode::kMissingInput,
               "no host that takes part has rank-0001");
  FileFetch damaged(wanted, {1});
  while (damaged.want().file != "rank-0001.safetensors") damaged.take(readPiece(damaged.want()));
  const nlohmann::json piece = {
      {"file", "rank-0001.safetensors"}, {"offset", 0}, {"total", 2}, {"bytes", "0102"}};
  EXPECT_ERROR(damaged.take(piece), ErrorCode::kNoGoodCheckpoint, "has the hash");
  EXPECT_FALSE(fs::exists(here_ + "/step-000003/rank-0001.safetensors"));
}

}  // namespace
}  // namespace pipeshard
