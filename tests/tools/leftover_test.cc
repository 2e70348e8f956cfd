// Nothing survives a run: no process, no file, no shared memory; also after Ctrl-C and after kill -9.

#include <algorithm>
#include <csignal>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

class Leftover : public ::testing::Test {
 protected:
  void SetUp() override {
    plan_ = folder_.file("mlp.plan");
    const CommandResult planned =
        runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x4", "-o", plan_});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
    shared_memory_ = listFolder("/dev/shm");
    temporary_ = ownTemporaries();
  }

  static std::set<std::string> listFolder(const fs::path& path) {
    std::set<std::string> names;
    if (!fs::exists(path)) return names;
    for (const auto& entry : fs::directory_iterator(path)) names.insert(entry.path().filename().string());
    return names;
  }

  // Files of the command in the temporary folder (those of tests that run beside this one do not count).
  std::set<std::string> ownTemporaries() const {
    std::set<std::string> names;
    for (const std::string& name : listFolder(folder_.path())) names.insert(name);
    return names;
  }

  pid_t startLongRun() {
    setenv("TMPDIR", folder_.path().c_str(), 1);
    const pid_t pid =
        startPipeshard({"run", plan_, "--steps", "10000000"}, folder_.path() / "out", folder_.path() / "err");
    EXPECT_TRUE(eventually([&] { return workersOf(plan_).size() >= 4; }, kPatience));
    unsetenv("TMPDIR");
    return pid;
  }

  // The folder is the machine's: what others have there goes by itself.
  void expectNoSharedMemory() const {
    const auto has_gone = [&] {
      const std::set<std::string> now = listFolder("/dev/shm");
      return std::includes(shared_memory_.begin(), shared_memory_.end(), now.begin(), now.end());
    };
    EXPECT_TRUE(eventually(has_gone, kPatience)) << ::testing::PrintToString(listFolder("/dev/shm"));
  }

  void expectNothingLeft() {
    EXPECT_TRUE(eventually([&] { return processesMentioning(plan_).empty(); }, seconds(5) + kSlack));
    expectNoSharedMemory();
    std::set<std::string> left = ownTemporaries();
    left.erase("out");
    left.erase("err");
    EXPECT_EQ(left, temporary_);
  }

  TemporaryFolder folder_;
  std::string plan_;
  std::set<std::string> shared_memory_;
  std::set<std::string> temporary_;
};

TEST_F(Leftover, NothingAfterAFinishedRun) {
  setenv("TMPDIR", folder_.path().c_str(), 1);
  ASSERT_EQ(runPipeshard({"validate", plan_, "--steps", "2"}).exit_code, 0);
  unsetenv("TMPDIR");
  expectNothingLeft();
}

TEST_F(Leftover, NothingAfterInterruptingValidateAtAnyMoment) {
  for (int delay_ms : {5, 20, 40, 70, 100, 150, 200, 300}) {
    setenv("TMPDIR", folder_.path().c_str(), 1);
    const pid_t pid =
        startPipeshard({"validate", plan_, "--steps", "200"}, folder_.path() / "out", folder_.path() / "err");
    unsetenv("TMPDIR");
    ASSERT_TRUE(eventually([&] { return ownTemporaries().size() > temporary_.size() + 2; }, kPatience));
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    kill(pid, delay_ms == 40 ? SIGHUP : SIGINT);
    const CommandResult result =
        finishPipeshard(pid, folder_.path() / "out", folder_.path() / "err", kPatience);
    EXPECT_EQ(result.exit_code, delay_ms == 40 ? 129 : 130) << delay_ms << " ms: " << result.errors;
    expectNothingLeft();
  }
}

TEST_F(Leftover, NothingAfterInterrupt) {
  const pid_t pid = startLongRun();
  kill(pid, SIGINT);
  const CommandResult result =
      finishPipeshard(pid, folder_.path() / "out", folder_.path() / "err", kPatience);
  EXPECT_EQ(result.exit_code, 130) << result.errors;
  expectNothingLeft();
}

TEST_F(Leftover, NothingAfterTermination) {
  const pid_t pid = startLongRun();
  kill(pid, SIGTERM);
  const CommandResult result =
      finishPipeshard(pid, folder_.path() / "out", folder_.path() / "err", kPatience);
  EXPECT_EQ(result.exit_code, 143) << result.errors;
  expectNothingLeft();
}

TEST_F(Leftover, NoProcessAfterTheCoordinatorIsKilled) {
  const pid_t pid = startLongRun();
  kill(pid, SIGKILL);
  finishPipeshard(pid, folder_.path() / "out", folder_.path() / "err", kPatience);
  EXPECT_TRUE(eventually([&] { return processesMentioning(plan_).empty(); }, seconds(5) + kSlack));
  expectNoSharedMemory();
}

TEST_F(Leftover, AKilledWorkerEndsTheJobWithItsCause) {
  const pid_t pid = startLongRun();
  const std::vector<pid_t> workers = workersOf(plan_);
  ASSERT_FALSE(workers.empty());
  kill(workers.back(), SIGKILL);
  const CommandResult result =
      finishPipeshard(pid, folder_.path() / "out", folder_.path() / "err", kPatience);
  EXPECT_EQ(result.exit_code, 69) << result.errors;
  EXPECT_THAT(result.errors, ::testing::HasSubstr("rank"));
  expectNothingLeft();
}

// The folder of a command that was killed goes with the next one; that of one that runs stays.
TEST_F(Leftover, ScratchFoldersOfTheDeadAreSwept) {
  const TemporaryFolder scratch;
  const auto toScratch = [&] { ::setenv("TMPDIR", scratch.path().c_str(), 1); };
  const CommandProcess alive(folder_.path(), "alive", {"validate", plan_, "--steps", "100000"}, toScratch);
  ASSERT_TRUE(eventually([&] { return listFolder(scratch.path()).size() == 1; }, kPatience));
  const std::set<std::string> of_alive = listFolder(scratch.path());
  const CommandProcess dead(folder_.path(), "dead", {"validate", plan_, "--steps", "100000"}, toScratch);
  const auto hasLock = [](const fs::path& folder) { return !readFile(folder / "in-use").empty(); };
  ASSERT_TRUE(eventually(
      [&] {
        const std::set<std::string> names = listFolder(scratch.path());
        return names.size() == 2 && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
                 return hasLock(scratch.path() / name);
               });
      },
      kPatience));
  ::kill(dead.pid(), SIGKILL);
  dead.finish();
  EXPECT_EQ(listFolder(scratch.path()).size(), 2U);
  const CommandProcess next(folder_.path(), "next", {"validate", plan_, "--steps", "1"}, toScratch);
  EXPECT_EQ(next.finish().exit_code, 0) << next.errors();
  EXPECT_EQ(listFolder(scratch.path()), of_alive);
  ::kill(alive.pid(), SIGTERM);
  alive.finish();
  EXPECT_TRUE(listFolder(scratch.path()).empty());
}

}  // namespace
}  // namespace pipeshard
