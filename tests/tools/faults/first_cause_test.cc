// What ended a worker, told better than "killed by signal 9": the kernel's lack of memory, and a backtrace.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>

#include "tests/sanitizers.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using ::testing::HasSubstr;

class FirstCause : public ::testing::Test {
 protected:
  void plan(const char* model) {
    const CommandResult planned = runPipeshard({"plan", model, "--cluster", "1x4", "-o", plan_});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  TemporaryFolder folder_;
  std::string plan_ = folder_.file("job.plan");
};

// A group of version 1 below that of this process; "" where none can be made.
std::string makeMemoryGroup(uint64_t limit) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(":memory:");
    if (at == std::string::npos) continue;
    for (const std::string& below : {line.substr(at + 8), std::string()}) {
      const std::string group =
          "/sys/fs/cgroup/memory" + below + "/pipeshard-test-" + std::to_string(::getpid());
      std::error_code error;
      if (!fs::create_directory(group, error)) continue;
      std::ofstream(group + "/memory.limit_in_bytes") << limit;
      return group;
    }
  }
  return "";
}

TEST_F(FirstCause, IsTheKernelWhereMemoryRunsOut) {
  SKIP_UNDER_SANITIZERS("the coordinator alone takes more than the limit");
  const std::string group = makeMemoryGroup(uint64_t{24} << 20);
  if (group.empty()) GTEST_SKIP() << "no control groups of version 1 to make";
  plan("examples/gpt2.onnx");
  const std::string errors = folder_.file("err");
  const pid_t child = ::fork();
  if (child == 0) {
    std::ofstream(group + "/cgroup.procs") << ::getpid() << std::flush;
    ::dup2(::open(errors.c_str(), O_WRONLY | O_CREAT, 0666), STDERR_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    ::execl(PIPESHARD_EXECUTABLE, "pipeshard", "run", plan_.c_str(), "--steps", "100000", "--checkpoint",
            folder_.file("saved").c_str(), "--restarts", "5", nullptr);
    ::_exit(127);
  }
  int status = 0;
  const bool ended = eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; }, seconds(30));
  if (!ended) ::kill(child, SIGKILL);
  EXPECT_TRUE(ended);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 83) << readFile(errors);
  EXPECT_THAT(readFile(errors),
              HasSubstr("was killed by the kernel for lack of memory (the limit of its control group"));
  EXPECT_THAT(readFile(errors), HasSubstr("is 24.0 MiB"));
  // The same plan takes the same memory: no restart helps.
  EXPECT_THAT(readFile(errors), HasSubstr("it is not started again"));
  EXPECT_THAT(readFile(errors), ::testing::Not(HasSubstr("restart 1 of 5")));
  EXPECT_TRUE(eventually([&] { return ::rmdir(group.c_str()) == 0; }, seconds(5)));
}

TEST_F(FirstCause, OfACrashIsInTheLogOfTheRank) {
  plan("examples/mlp.onnx");
  for (const int signal : {SIGSEGV, SIGABRT}) {
    const std::string log = folder_.file("log" + std::to_string(signal));
    const fs::path out = log + ".out", err = log + ".err";
    const pid_t run = startPipeshard({"run", plan_, "--steps", "10000000", "--log", log}, out, err);
    const auto is_stepping = [&] { return readFile(out).find("step 1/") != std::string::npos; };
    ASSERT_TRUE(eventually(is_stepping, seconds(30))) << readFile(err);
    const std::vector<pid_t> workers = workersOf(plan_, 2);
    ASSERT_EQ(workers.size(), 1u) << readFile(out) << readFile(err);
    ::kill(workers[0], signal);
    const CommandResult result = finishPipeshard(run, out, err, seconds(20));
    EXPECT_EQ(result.exit_code, 69);
    EXPECT_THAT(result.errors, HasSubstr("was killed by signal " + std::to_string(signal)));
    EXPECT_THAT(result.errors, HasSubstr("its log: " + log + "/ranks/0002.log"));
    const std::string text = readFile(log + "/ranks/0002.log");
    EXPECT_THAT(
        text, HasSubstr(signal == SIGSEGV ? "ended by SIGSEGV; backtrace:" : "ended by SIGABRT; backtrace:"));
    EXPECT_THAT(text, HasSubstr("pipeshard worker of rank 2 (pid " + std::to_string(workers[0]) + ")"));
    EXPECT_GE(std::count(text.begin(), text.end(), '\n'), 4) << text;
  }
}

}  // namespace
}  // namespace pipeshard
