// Plan directories cannot be lost: whatever happens while one is written, a whole one is there.
#include "planning/directory/plan_directory.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <climits>
#include <cstddef>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/base/text_file.h"
#include "ir/plan/plan_json.h"
#include "planning/directory/refresh_programs.h"
#include "planning/pipeline.h"
#include "runtime/execute/rank_image.h"
#include "runtime/files/posix_file.h"
#include "tests/expect_error.h"
#include "tests/kill_at_system_call.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

PlannedTraining planOf(int64_t microbatches) {
  PlanRequest request;
  request.model_path = PIPESHARD_SOURCE_DIR "/examples/mlp.onnx";
  request.partition.cluster = parseCluster("1x1");
  request.dimensions = {{"batch", 8}};
  request.microbatches = microbatches;
  return planTraining(request, [](const std::string&) {});
}

// From here on this process has a file system that cannot exchange names.
void refuseExchange() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(rules), rules};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    ::_exit(1);
}

class PlanDirectoryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    old_ = new PlannedTraining(planOf(1));
    fresh_ = new PlannedTraining(planOf(2));
  }
  static void TearDownTestSuite() {
    delete old_;
    delete fresh_;
  }

  std::string path() const { return folder_.file("my.plan"); }

  // How many microbatches the plan has, after a look at every file: all of one plan.
  static int64_t wholePlan(const std::string& directory) {
    const Plan plan = readPlanDirectory(directory);
    EXPECT_FALSE(wasEdited(directory, plan));
    EXPECT_GT(fs::file_size(directory + "/model.onnx"), 0U);
    const RankImage rank = loadRank(directory, RankId(0));
    EXPECT_EQ(rank.program.microbatches, plan.microbatches);
    EXPECT_EQ(loadRank(directory + "/reference", RankId(0)).program.microbatches, plan.microbatches);
    return plan.microbatches;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path()))
      found.push_back(entry.path().filename().string());
    return found;
  }

  TemporaryFolder folder_;
  static PlannedTraining* old_;
  static PlannedTraining* fresh_;
};

PlannedTraining* PlanDirectoryTest::old_ = nullptr;
PlannedTraining* PlanDirectoryTest::fresh_ = nullptr;

// How many system calls at the end put the directory in its place; those before make files beside it.
constexpr int kLastCalls = 150;

int countSystemCalls(const std::function<void()>& body) {
  int count = 0;
  EXPECT_FALSE(killAtSystemCall(INT_MAX / 4, body, &count));
  return count;
}

TEST_F(PlanDirectoryTest, ACrashAtAnySystemCallLeavesTheOldOneOrTheNewOne) {
  int old = 0, fresh = 0;
  writePlanDirectory(*old_, path());
  const auto write = [&] { writePlanDirectory(*fresh_, path()); };
  const int all = countSystemCalls(write);
  ASSERT_GT(all, 2 * kLastCalls);
  writePlanDirectory(*old_, path());
  for (int n = 1;; n += n < all - kLastCalls ? 11 : 1) {
    ASSERT_LT(n, 2 * all);
    const bool killed = killAtSystemCall(n, write);
    const int64_t found = wholePlan(path());
    ++(found == 1 ? old : fresh);
    if (found == 2) writePlanDirectory(*old_, path());
    if (!killed) break;
  }
  EXPECT_GT(old, 20);
  EXPECT_GT(fresh, 5);
  EXPECT_LT(fresh, kLastCalls);       // or calls that matter were left out
  writePlanDirectory(*old_, path());  // sweeps what the crashes have left
  EXPECT_THAT(names(), ElementsAre("my.plan"));
}

TEST_F(PlanDirectoryTest, WithoutExchangeOfNamesNoneIsLostEither) {
  int kept_aside = 0;
  writePlanDirectory(*old_, path());
  const auto write = [&] {
    refuseExchange();
    writePlanDirectory(*fresh_, path());
  };
  for (int n = countSystemCalls(write) - kLastCalls;; ++n) {
    writePlanDirectory(*old_, path());
    ASSERT_EQ(wholePlan(path()), 1) << n;
    ASSERT_THAT(names(), ElementsAre("my.plan")) << n;
    const bool killed = killAtSystemCall(n, write);
    const bool is_there = fs::exists(path());
    if (!is_there) ++kept_aside;
    wholePlan(is_there ? path() : path() + ".replaced");
    if (!killed) break;
  }
  EXPECT_GE(kept_aside, 1);
}

TEST_F(PlanDirectoryTest, EightWritersAtOnceLeaveOneGoodPlan) {
  std::vector<pid_t> children;
  for (int k = 0; k < 8; ++k) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0; i < 5; ++i) writePlanDirectory(k % 2 == 0 ? *old_ : *fresh_, path());
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  wholePlan(path());
  EXPECT_THAT(names(), ElementsAre("my.plan"));
}

TEST_F(PlanDirectoryTest, OnlyWhatDeadProcessesHaveLeftIsSwept) {
  const std::string dead = path() + ".partial-7", alive = path() + ".partial-8";
  fs::create_directories(dead + "/ranks");
  fs::create_directories(alive + "/ranks");
  const Descriptor lock(::open(alive.c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  writePlanDirectory(*old_, path() + "/");
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(alive + "/ranks"));
  EXPECT_EQ(wholePlan(path()), 1);
}

TEST_F(PlanDirectoryTest, ASecondWriterNamesTheFirst) {
  writePlanDirectory(*old_, path());
  const Descriptor other(::open((path() + ".lock").c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(::write(other.get(), "4711 on there", 13), 13);
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_ERROR(writePlanDirectory(*fresh_, path(), {}, std::chrono::milliseconds(80)),
               ErrorCode::kAddressInUse, "another process writes " + path() + " (process 4711 on there)");
  EXPECT_EQ(wholePlan(path()), 1);
  EXPECT_EQ(names().size(), 2U);  // nothing partial
}

TEST_F(PlanDirectoryTest, AFolderThatIsNoPlanIsNotReplaced) {
  fs::create_directories(path());
  writeTextFile(path() + "/thesis.txt", "years");
  EXPECT_ERROR(writePlanDirectory(*old_, path()), ErrorCode::kConfiguration, "is no plan directory");
  writeTextFile(folder_.file("file"), "");
  EXPECT_ERROR(writePlanDirectory(*old_, folder_.file("file") + "/p"), ErrorCode::kConfiguration,
               "cannot be made");
  EXPECT_EQ(requireTextFile(path() + "/thesis.txt"), "years");
}

}  // namespace
}  // namespace pipeshard
