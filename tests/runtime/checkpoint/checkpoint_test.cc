#include "runtime/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/files/content_hash.h"
#include "tests/disk_faults.h"
#include "tests/expect_error.h"
#include "tests/kill_at_system_call.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// "parameter/w" [4,3], whose rows are with two ranks, and "state/w.first_moment" [2] with the second one.
class CheckpointTest : public ::testing::Test {
 protected:
  static CheckpointFile writeRank(const std::string& folder, int rank, float number, int64_t rows = 2) {
    const std::vector<float> w(rows * 3, number);
    const std::vector<float> moment(2, number);
    std::vector<TensorView> tensors = {{"parameter/w", DataType::kFloat32, {rows, 3}, w.data()}};
    if (rank == 1) tensors.push_back({"state/w.first_moment", DataType::kFloat32, {2}, moment.data()});
    const std::string name = checkpointFileName(RankId(rank));
    const WrittenFile written = writeTensorFile(folder + "/" + name, tensors,
                                                {partEntry("parameter/w", {{4, 3}, {2 * rank, 0}})}, true);
    return {name, written.bytes, written.hash};
  }

  static Checkpoint commit(CheckpointFolder& folder, int64_t step, int64_t rows = 2) {
    const std::string partial = folder.partialOf(step);
    makeFolder(partial);
    Checkpoint checkpoint;
    checkpoint.step = step;
    checkpoint.job = "job";
    checkpoint.seed = 7;
    checkpoint.extent = StepExtent{32, 4};
    for (const int rank : {0, 1})
      checkpoint.files.push_back(writeRank(partial, rank, static_cast<float>(step), rank == 0 ? rows : 2));
    return folder.commit(std::move(checkpoint));
  }

  static std::string contentOf(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static void damage(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }

  std::string path() const { return folder_.file("saved"); }
  std::string stepPath(int64_t step) const { return path() + "/" + checkpointName(step); }

  TemporaryFolder folder_;
  std::vector<std::string> notices_;
  std::function<void(const std::string&)> notice_ = [this](const std::string& text) {
    notices_.push_back(text);
  };
};

// What nobody trains from, and `export` reads.
TEST_F(CheckpointTest, PlanFilesAreVerifiedToo) {
  CheckpointFolder folder(path(), "job", 2, {{"plan.json", "{}"}, {"weights.json", ""}});
  Checkpoint saved = commit(folder, 1);
  verifyCheckpoint(saved);
  EXPECT_ERROR(verifyPlanFiles(saved), ErrorCode::kNoGoodCheckpoint, "weights.json");
  fs::remove(stepPath(1) + "/weights.json");
  verifyPlanFiles(saved);
  saved.plan = hashText(contentHash("{}"));
  verifyPlanFiles(saved);
  std::ofstream(stepPath(1) + "/plan.json").close();
  EXPECT_ERROR(verifyPlanFiles(saved), ErrorCode::kNoGoodCheckpoint, "plan.json has the hash");
  fs::remove(stepPath(1) + "/plan.json");
  EXPECT_ERROR(verifyPlanFiles(saved), ErrorCode::kNoGoodCheckpoint, "plan.json is not there");
  ASSERT_EQ(::mkfifo((stepPath(1) + "/plan.json").c_str(), 0600), 0);
  EXPECT_ERROR(verifyPlanFiles(saved), ErrorCode::kNoGoodCheckpoint, "plan.json");
}

TEST_F(CheckpointTest, ComesBackWithItsTensorsWhole) {
  CheckpointFolder folder(path(), "job", 2, {{"plan.json", "{}"}});
  const Checkpoint written = commit(folder, 3);
  EXPECT_EQ(written.directory, stepPath(3));
  EXPECT_EQ(contentOf(stepPath(3) + "/plan.json"), "{}");
  const Checkpoint read = readCheckpoint(stepPath(3));
  verifyCheckpoint(read);
  EXPECT_EQ(read.step, 3);
  EXPECT_EQ(read.seed, 7u);
  EXPECT_EQ(read.extent, (StepExtent{32, 4}));
  EXPECT_EQ(read.files, written.files);
  EXPECT_EQ(read.tensors, written.tensors);
  const CheckpointTensor w{
      "parameter/w", DataType::kFloat32, {4, 3}, {{0, {0, 0}, {2, 3}}, {1, {2, 0}, {2, 3}}}};
  EXPECT_EQ(read.tensors.at(0), w);
  const JoinedTensors tensors = openTensors(read);
  EXPECT_EQ(tensors.read("parameter/w").elements(), std::vector<double>(12, 3));
  std::vector<float> box(4);
  tensors.readBox("parameter/w", {{1, 1}, {2, 2}}, std::as_writable_bytes(std::span(box)));
  EXPECT_EQ(box, std::vector<float>(4, 3));
}

TEST_F(CheckpointTest, KeepsTheNewestAndListsThemFirst) {
  CheckpointFolder folder(path(), "job", 2);
  for (const int64_t step : {5, 10, 15}) commit(folder, step);
  EXPECT_THAT(listCheckpoints(path()), ElementsAre(stepPath(15), stepPath(10)));
  EXPECT_THAT(listCheckpoints(stepPath(10)), ElementsAre(stepPath(10)));
  EXPECT_EQ(contentOf(path() + "/LATEST"), "step-000015\n");
  commit(folder, 15);  // the same step again takes its place
  EXPECT_THAT(listCheckpoints(path()), ElementsAre(stepPath(15), stepPath(10)));
}

TEST_F(CheckpointTest, DamageIsNamedAndAnOlderOneIsTaken) {
  {
    CheckpointFolder folder(path(), "job", 3);
    for (const int64_t step : {1, 2, 3}) commit(folder, step);
  }
  damage(stepPath(3) + "/rank-0001.safetensors");
  fs::resize_file(stepPath(2) + "/rank-0000.safetensors", 10);
  EXPECT_ERROR(verifyCheckpoint(readCheckpoint(stepPath(3))), ErrorCode::kNoGoodCheckpoint,
               "rank-0001.safetensors has the hash");
  EXPECT_ERROR(readCheckpoint(stepPath(2)), ErrorCode::kNoGoodCheckpoint,
               "rank-0000.safetensors has 10 bytes");
  EXPECT_EQ(newestGoodCheckpoint(path(), notice_)->step, 1);
  EXPECT_EQ(newestGoodCheckpoint(path(), {}, 2)->step, 1);
  EXPECT_ERROR(newestGoodCheckpoint(path(), {}, 1), ErrorCode::kNoGoodCheckpoint,
               "none of the 3 checkpoints");
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("step-000003"), HasSubstr("step-000002")));
  damage(stepPath(1) + "/manifest.json");
  EXPECT_ERROR(newestGoodCheckpoint(path(), notice_), ErrorCode::kNoGoodCheckpoint,
               "none of the 3 checkpoints");
  EXPECT_FALSE(newestGoodCheckpoint(folder_.file("none"), notice_));
}

TEST_F(CheckpointTest, PartsThatAreNotTheWholeAreNotCommitted) {
  CheckpointFolder folder(path(), "job", 2);
  commit(folder, 1);
  EXPECT_ERROR(commit(folder, 2, 1), ErrorCode::kBadModel, "'parameter/w' cannot be put together");
  EXPECT_THAT(listCheckpoints(path()), ElementsAre(stepPath(1)));
  EXPECT_FALSE(fs::exists(stepPath(2) + ".partial-job"));
}

TEST_F(CheckpointTest, WhatDeadJobsHaveLeftIsSweptAway) {
  fs::create_directories(path());
  std::ofstream(path() + "/LATEST.tmp.7") << "step-";  // its writer was killed
  for (const char* name : {"step-000004.partial-dead", "step-000005.partial-removed"}) {
    fs::create_directories(path() + "/" + name);
    writeRank(path() + "/" + name, 0, 1);
  }
  CheckpointFolder folder(path(), "job", 2);
  EXPECT_THAT(listCheckpoints(path()), IsEmpty());
  EXPECT_FALSE(fs::exists(path() + "/step-000004.partial-dead"));
  EXPECT_FALSE(fs::exists(path() + "/LATEST.tmp.7"));
  EXPECT_FALSE(fs::exists(path() + "/step-000005.partial-removed"));
}

// Other programs name theirs much the same.
TEST_F(CheckpointTest, WhatIsNotItsOwnStays) {
  const std::vector<std::string> names = {"mine",        "step-7",      "step-100",
                                          "step-000004", "step-000005", "step-000007.bak"};
  for (const std::string& name : names) {
    fs::create_directories(path() + "/" + name);
    std::ofstream(path() + "/" + name + "/model.pt") << "precious";
  }
  std::ofstream(stepPath(6)) << "precious";
  CheckpointFolder folder(path(), "job", 1);
  EXPECT_THAT(folder.describeObstacles(),
              ElementsAre(HasSubstr(stepPath(4) + " is no checkpoint of pipeshard, and in the way"),
                          HasSubstr(stepPath(5)), HasSubstr(stepPath(6))));
  EXPECT_FALSE(newestGoodCheckpoint(path(), notice_));
  commit(folder, 3);
  for (const int64_t step : {5, 6}) {
    EXPECT_ERROR(commit(folder, step), ErrorCode::kConfiguration,
                 stepPath(step) + " is no checkpoint of pipeshard");
    EXPECT_FALSE(fs::exists(folder.partialOf(step)));
  }
  commit(folder, 8);
  EXPECT_THAT(listCheckpoints(path()), ElementsAre(stepPath(8)));
  for (const std::string& name : names) EXPECT_EQ(contentOf(path() + "/" + name + "/model.pt"), "precious");
  EXPECT_EQ(contentOf(stepPath(6)), "precious");
  EXPECT_THAT(notices_, IsEmpty());
}

// Copies that were cut off, say. They are replaced when their step is done again, and not before.
TEST_F(CheckpointTest, OneWithoutCommitIsNamedAndStays) {
  {
    CheckpointFolder folder(path(), "job", 3);
    for (const int64_t step : {1, 2, 3}) commit(folder, step);
  }
  for (const int64_t step : {2, 3}) fs::remove(stepPath(step) + "/COMMIT");
  CheckpointFolder folder(path(), "next", 3);
  EXPECT_THAT(folder.describeObstacles(), IsEmpty());
  EXPECT_THAT(listDamaged(path()), ElementsAre(stepPath(3), stepPath(2)));
  EXPECT_EQ(newestGoodCheckpoint(path(), notice_)->step, 1);
  EXPECT_THAT(notices_, ElementsAre(HasSubstr(stepPath(3) + " is not whole: it has no COMMIT"),
                                    HasSubstr(stepPath(2) + " is not whole")));
  folder.goOnAfter(1);
  commit(folder, 2);
  EXPECT_THAT(listCheckpoints(path()), ElementsAre(stepPath(2), stepPath(1)));
  EXPECT_TRUE(fs::exists(stepPath(3) + "/rank-0001.safetensors"));
  for (const int64_t step : {1, 2}) fs::remove(stepPath(step) + "/COMMIT");
  EXPECT_ERROR(newestGoodCheckpoint(path(), notice_), ErrorCode::kNoGoodCheckpoint,
               "none of the 3 checkpoints");
}

TEST_F(CheckpointTest, OneOfThemIsNoFolderForOthers) {
  {
    CheckpointFolder folder(path(), "job", 3);
    for (const int64_t step : {1, 2}) commit(folder, step);
  }
  for (const char* ending : {"", "/"}) {
    EXPECT_ERROR(CheckpointFolder(stepPath(1) + ending, "job", 2), ErrorCode::kConfiguration,
                 stepPath(1) +
                     " is a checkpoint, and --checkpoint names the folder that has them. To go on "
                     "from the newest: --checkpoint " +
                     path());
  }
  EXPECT_ERROR(CheckpointFolder(stepPath(1), "job", 2), ErrorCode::kConfiguration,
               "cp -r " + stepPath(1) + " from-1/step-000001`) and give --checkpoint from-1");
  EXPECT_FALSE(fs::exists(stepPath(1) + "/lock"));
  verifyCheckpoint(readCheckpoint(stepPath(1)));
}

TEST_F(CheckpointTest, LatestNamesTheNewestThatIsLeft) {
  CheckpointFolder folder(path(), "job", 3);
  for (const int64_t step : {1, 2, 3}) commit(folder, step);
  deleteCheckpoint(stepPath(2));
  EXPECT_EQ(contentOf(path() + "/LATEST"), "step-000003\n");
  deleteCheckpoint(stepPath(3));
  EXPECT_EQ(contentOf(path() + "/LATEST"), "step-000001\n");
  deleteCheckpoint(stepPath(1));
  EXPECT_FALSE(fs::exists(path() + "/LATEST"));
}

TEST_F(CheckpointTest, AManifestThatHasChangedIsNamedOnce) {
  CheckpointFolder folder(path(), "job", 2);
  commit(folder, 3);
  std::ofstream(stepPath(3) + "/manifest.json", std::ios::app) << ' ';
  try {
    readManifest(stepPath(3));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNoGoodCheckpoint);
    EXPECT_TRUE(error.message().starts_with("checkpoint " + stepPath(3) + ": manifest.json has the hash "))
        << error.message();
  }
}

TEST_F(CheckpointTest, AFolderHasOneWriter) {
  fs::create_directories(path());
  Descriptor other(::open((path() + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  ASSERT_EQ(::write(other.get(), "4711", 4), 4);
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_ERROR(CheckpointFolder(path(), "job", 2, {}, std::chrono::milliseconds(80)),
               ErrorCode::kAddressInUse, "process 4711");
}

TEST(CheckpointManifest, SaysWhatIsWrongWithIt) {
  EXPECT_ERROR(checkpointFromJson("{"), ErrorCode::kNoGoodCheckpoint, "the manifest is damaged");
  EXPECT_ERROR(checkpointFromJson(R"({"version": 99})"), ErrorCode::kVersionMismatch, "version 99");
  Checkpoint checkpoint;
  checkpoint.files = {{"../../etc/passwd", 1, 2}};
  EXPECT_ERROR(checkpointFromJson(checkpointToJson(checkpoint)), ErrorCode::kNoGoodCheckpoint,
               "no file of the checkpoint's own folder");
  checkpoint.files = {{"a", 1, 2}};
  checkpoint.tensors = {{"w", DataType::kFloat32, {1}, {{1, {0}, {1}}}}};
  EXPECT_ERROR(checkpointFromJson(checkpointToJson(checkpoint)), ErrorCode::kNoGoodCheckpoint,
               "'w' is in file 1 of 1");
}

// Which a cast would have made some other number of.
TEST(CheckpointManifest, TakesNoNumberThatIsNone) {
  Checkpoint checkpoint;
  checkpoint.step = 5;
  checkpoint.seed = UINT64_MAX;
  checkpoint.files = {{"a", 24, 2}};
  checkpoint.tensors = {{"w", DataType::kFloat32, {6}, {{0, {0}, {6}}}}};
  const std::string good = checkpointToJson(checkpoint);
  EXPECT_EQ(checkpointFromJson(good).tensors, checkpoint.tensors);
  EXPECT_EQ(checkpointFromJson(good).seed, UINT64_MAX);
  EXPECT_FALSE(checkpointFromJson(good).extent);  // as older ones
  for (const auto& [field, number, named] :
       {std::tuple("step", "5", "step"), std::tuple("bytes", "24", "files[0].bytes"),
        std::tuple("seed", "18446744073709551615", "seed"),
        std::tuple("file", "0", "tensors[0].slices[0].file")}) {
    for (const char* const bad : {"1.5", "1e300", "-1", "18446744073709551616", "true", "\"1\""}) {
      std::string text = good;
      const std::string found = fmt::format("\"{}\": {}", field, number);
      ASSERT_NE(text.find(found), std::string::npos) << good;
      text.replace(text.find(found), found.size(), fmt::format("\"{}\": {}", field, bad));
      EXPECT_ERROR(checkpointFromJson(text), ErrorCode::kNoGoodCheckpoint, named);
    }
  }
  for (const char* const bad : {"6.5", "1e300", "-6"}) {
    std::string text = good;
    text.replace(text.rfind('6'), 1, bad);
    EXPECT_ERROR(checkpointFromJson(text), ErrorCode::kNoGoodCheckpoint, "tensors[0]");
  }
}

TEST_F(CheckpointTest, ACrashAtAnySystemCallLeavesTheOldOneOrTheNewOne) {
  int old = 0, fresh = 0;
  for (int n = 1;; ++n) {
    ASSERT_LT(n, 2000);
    fs::remove_all(path());
    {
      CheckpointFolder folder(path(), "job", 1);
      commit(folder, 1);
    }
    const bool killed = killAtSystemCall(n, [&] {
      CheckpointFolder folder(path(), "next", 1);
      commit(folder, 2);
    });
    const std::optional<Checkpoint> left = newestGoodCheckpoint(path(), notice_);
    ASSERT_TRUE(left) << "killed at system call " << n;
    ++(left->step == 1 ? old : fresh);
    const CheckpointFolder next(path(), "later", 1);  // the sweep does not touch it
    ASSERT_EQ(newestGoodCheckpoint(path(), notice_)->step, left->step) << n;
    if (!killed) break;
  }
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_GT(old, 20);
  EXPECT_GT(fresh, 5);
}

// Each call that changes the disk is refused once: what is listed afterwards is whole, and the next
// checkpoint can be made.
TEST_F(CheckpointTest, ARefusalAtAnyCallLeavesTheOldOneOrTheNewOne) {
  if (!DiskFaults::areAvailable()) GTEST_SKIP() << "the system does not allow seccomp's user notification";
  constexpr int kErrors[] = {ENOSPC, EDQUOT, EIO, EROFS};
  int old = 0, fresh = 0;
  fs::create_directories(path());
  std::string refused = "any";
  for (int n = 1; !refused.empty(); ++n) {
    ASSERT_LT(n, 1000);
    if (listCheckpoints(path()) != std::vector<std::string>{stepPath(1)}) {
      fs::remove_all(path());
      CheckpointFolder folder(path(), "job", 1);
      commit(folder, 1);
    }
    refused.clear();  // where there are fewer calls
    int code = 0;
    {
      const DiskFaults disk(path(), [&](const DiskCall& call) {
        if (call.number != n) return DiskAnswer{};
        refused = call.name + " " + call.path;
        return DiskAnswer{kErrors[n % 4]};
      });
      code = disk.runForked([&] {
        try {
          CheckpointFolder folder(path(), "next", 1);
          commit(folder, 2);
          return 0;
        } catch (const Error& error) {
          return static_cast<int>(error.code());
        }
      });
    }
    SCOPED_TRACE(refused);
    ASSERT_TRUE(code == 0 || code == static_cast<int>(ErrorCode::kDiskFull)) << code;
    const std::optional<Checkpoint> left = newestGoodCheckpoint(path(), notice_);
    ASSERT_TRUE(left);
    EXPECT_TRUE(code != 0 || left->step == 2) << "said to be there, and is not";
    ++(left->step == 1 ? old : fresh);
    CheckpointFolder next(path(), "later", 1);
    EXPECT_EQ(newestGoodCheckpoint(path(), notice_)->step, left->step);
    if (n % 8 != 0) continue;
    commit(next, 3);
    EXPECT_THAT(listCheckpoints(path()), ElementsAre(stepPath(3)));
  }
  EXPECT_THAT(notices_, IsEmpty());
  EXPECT_GT(old, 20);
  EXPECT_GT(fresh, 5);
}

}  // namespace
}  // namespace pipeshard
