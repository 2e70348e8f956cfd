// Limits of the machine, lowered one by one: a sentence with the value that is needed, and never a signal, a
// library's abort or "bug".

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <tuple>

#include "tests/sanitizers.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Users without other processes; RLIMIT_NPROC counts all of a user's, and tests run beside each other.
constexpr uid_t kNobody = 65534;
constexpr uid_t kNobodyElse = 65533;

class Limits : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"mlp.onnx", "mlp.onnx.data"})
      fs::copy(fs::path(PIPESHARD_SOURCE_DIR) / "examples" / name, folder_.path() / name);
    fs::copy(PIPESHARD_EXECUTABLE, folder_.path() / "pipeshard");
    const CommandResult planned =
        runPipeshard({"plan", folder_.file("mlp.onnx"), "--cluster", "1x4", "-o", folder_.file("mlp.plan")});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
    fs::permissions(folder_.path(), fs::perms::all);
  }

  // The command with something done to its process first.
  CommandResult run(const std::vector<std::string>& arguments, const std::function<void()>& before) {
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string out = folder_.file("out"), err = folder_.file("err");
      ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
      ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
      for (int descriptor = 3; descriptor < 64; ++descriptor) ::close(descriptor);
      const std::string program = folder_.file("pipeshard");
      std::vector<char*> argv{const_cast<char*>(program.c_str())};
      for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      ::setenv("HOME", folder_.path().c_str(), 1);
      before();
      ::execv(program.c_str(), argv.data());
      ::_exit(127);
    }
    CommandResult result;
    int status = 0;
    const bool ended =
        eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; }, std::chrono::seconds(60));
    if (!ended) ::kill(child, SIGKILL);
    result.exit_code = !ended ? -1 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    result.output = readFile(folder_.path() / "out");
    result.errors = readFile(folder_.path() / "err");
    return result;
  }
  CommandResult runStep(const std::function<void()>& before, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"run", folder_.file("mlp.plan"), "--steps", "1", "--threads", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments, before);
  }
  static void limit(int resource, rlim_t value) {
    const rlimit both{value, value};
    ::setrlimit(static_cast<__rlimit_resource_t>(resource), &both);
  }
  static void becomeUser(uid_t user) {
    if (::setgid(user) != 0 || ::setuid(user) != 0) ::_exit(126);
  }
  static void expectSentence(const CommandResult& result, const std::string& what) {
    EXPECT_THAT(result.exit_code, AnyOf(0, 73, 78, 83)) << what << ": " << result.errors;
    EXPECT_THAT(result.errors, Not(HasSubstr("bug"))) << what;
    if (result.exit_code != 0) {
      EXPECT_THAT(result.errors, HasSubstr("pipeshard: ")) << what;
    }
  }

  TemporaryFolder folder_;
};

TEST_F(Limits, OfOpenFiles) {
  const CommandResult result = runStep([] { limit(RLIMIT_NOFILE, 24); });
  EXPECT_EQ(result.exit_code, 78);
  EXPECT_THAT(result.errors,
              HasSubstr("open files: 24 are allowed, this job needs 52 on this host; `ulimit -n 52`"));
  const std::vector<std::string> writes{"--trace", folder_.file("trace.json"), "--checkpoint",
                                        folder_.file("saved")};
  for (rlim_t files = 60; files >= 4; files -= files > 12 ? 4 : 1)  // the loader needs 4 itself
    expectSentence(runStep([&] { limit(RLIMIT_NOFILE, files); }, writes),
                   "open files " + std::to_string(files));
}

// Another user's plan: said first, then all is compared; what evaluates is refused at once.
TEST_F(Limits, OfAPlanThatMayNotBeWritten) {
  if (::geteuid() != 0) GTEST_SKIP() << "becomes another user";
  const std::string plan = folder_.file("mlp.plan");
  const CommandResult result = run({"validate", plan}, [] { becomeUser(kNobody); });
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  const size_t note = result.output.find("note: the plan will not have what is found: " + plan);
  const size_t tables = result.output.find("compared "), pass = result.output.find("PASS");
  EXPECT_LT(note, tables) << result.output;
  EXPECT_LT(tables, pass) << result.output;
  EXPECT_LT(result.output.find("not written to the plan"), pass) << result.output;
  EXPECT_FALSE(fs::exists(plan + "/validation.json"));
}

TEST_F(Limits, OfProcesses) {
  SKIP_UNDER_SANITIZERS("LeakSanitizer starts a process at the end");
  if (::geteuid() != 0) GTEST_SKIP() << "counts processes of a user who has no others";
  const auto lower = [&](rlim_t tasks) {
    return runStep([=] {
      limit(RLIMIT_NPROC, tasks);
      becomeUser(kNobodyElse);
    });
  };
  const CommandResult result = lower(20);
  EXPECT_EQ(result.exit_code, 78) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("processes and threads: 20 are allowed, this job needs "));
  EXPECT_THAT(result.errors, HasSubstr("ulimit -u"));
  for (const rlim_t tasks : {60, 41, 40, 30, 10, 4, 1})
    expectSentence(lower(tasks), "tasks " + std::to_string(tasks));
}

TEST_F(Limits, OfAddressSpace) {
  SKIP_UNDER_SANITIZERS("their shadow needs terabytes of address space");
  for (rlim_t mebibytes = 1600; mebibytes > 130; mebibytes -= mebibytes > 300 ? mebibytes / 4 : 8)
    expectSentence(runStep([&] { limit(RLIMIT_AS, mebibytes << 20); }),
                   "address space " + std::to_string(mebibytes));
  const CommandResult result = runStep([] { limit(RLIMIT_AS, rlim_t{300} << 20); });
  EXPECT_EQ(result.exit_code, 83);
  EXPECT_THAT(result.errors, HasSubstr("ulimit -v"));
}

TEST_F(Limits, OfData) {
  SKIP_UNDER_SANITIZERS("their shadow needs terabytes of address space");
  for (rlim_t mebibytes = 800; mebibytes >= 8; mebibytes -= mebibytes > 100 ? mebibytes / 3 : 4)
    expectSentence(runStep([&] { limit(RLIMIT_DATA, mebibytes << 20); }),
                   "data " + std::to_string(mebibytes));
  const CommandResult result = runStep([] { limit(RLIMIT_DATA, rlim_t{40} << 20); });
  EXPECT_EQ(result.exit_code, 83);
  EXPECT_THAT(result.errors, HasSubstr("ulimit -d"));
}

// Whoever gives what is asked for is not asked again, by the command, its workers or a second job.
TEST_F(Limits, OneValueOfMemoryDoes) {
  SKIP_UNDER_SANITIZERS("their shadow needs terabytes of address space");
  const std::string plan = folder_.file("mlp.plan");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"run", plan, "--steps", "1"}, std::vector<std::string>{"validate", plan}}) {
    for (const auto& [resource, flag, first] :
         {std::tuple(RLIMIT_AS, 'v', rlim_t{300} << 20), std::tuple(RLIMIT_DATA, 'd', rlim_t{40} << 20)}) {
      const std::string ulimit = std::string("`ulimit -") + flag + " ";
      const int limited = resource;
      const rlim_t low = first;
      const CommandResult refused = run(words, [&] { limit(limited, low); });
      EXPECT_EQ(refused.exit_code, 83) << refused.errors;
      const size_t at = refused.errors.find(ulimit);
      ASSERT_NE(at, std::string::npos) << refused.errors;
      const rlim_t value = std::stoull(refused.errors.substr(at + ulimit.size())) << 10;
      const CommandResult done = run(words, [&] { limit(limited, value); });
      EXPECT_EQ(done.exit_code, 0) << words[0] << " " << ulimit << value << ": " << done.errors;
    }
  }
}

TEST_F(Limits, OfMemoryAreNamedByWhoeverRunsOutOfIt) {
  SKIP_UNDER_SANITIZERS("their shadow needs terabytes of address space");
  for (const std::string command : {"plan", "validate"}) {
    std::vector<std::string> words{command, folder_.file("mlp.onnx"), "--cluster", "1x2"};
    if (command == "plan") words.insert(words.end(), {"-o", folder_.file("low.plan")});
    const CommandResult result = run(words, [] { limit(RLIMIT_DATA, rlim_t{20000} << 10); });
    EXPECT_EQ(result.exit_code, 83) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr("ulimit -d")) << command;
  }
}

TEST_F(Limits, OfTheSizeOfFiles) {
  for (rlim_t bytes = rlim_t{256} << 20; bytes >= 4096; bytes /= 8) {
    const CommandResult result =
        runStep([&] { limit(RLIMIT_FSIZE, bytes); }, {"--checkpoint", folder_.file("saved")});
    expectSentence(result, "size of files " + std::to_string(bytes));
    fs::remove_all(folder_.path() / "saved");
  }
  const CommandResult result = runStep([&] { limit(RLIMIT_FSIZE, 1000); });
  EXPECT_EQ(result.exit_code, 78);
  EXPECT_THAT(result.errors, HasSubstr("size of files: 1000 B are allowed, the control segment needs "));
  EXPECT_THAT(result.errors, HasSubstr("`ulimit -f "));
}

TEST_F(Limits, OfTheStack) {
  const CommandResult result = runStep([] { limit(RLIMIT_STACK, 64 << 10); });
  EXPECT_EQ(result.exit_code, 78) << result.errors;
  EXPECT_THAT(result.errors,
              HasSubstr("stack size: 64.0 KiB are allowed, 512 KiB are needed; `ulimit -s 8192`"));
  // The soft limit alone is raised, for threads too.
  const CommandResult raised = runStep([] {
    const rlimit soft{64 << 10, RLIM_INFINITY};
    ::setrlimit(RLIMIT_STACK, &soft);
  });
  EXPECT_EQ(raised.exit_code, 0) << raised.errors;
}

TEST_F(Limits, OfLockedMemoryIsNotNeeded) {
  EXPECT_EQ(runStep([] { limit(RLIMIT_MEMLOCK, 0); }).exit_code, 0);
}

// In a file system of 200 kB at `small`.
class FullDisk : public Limits {
 protected:
  CommandResult runOnSmallDisk(const std::vector<std::string>& arguments,
                               const std::function<void()>& fill = {}) {
    const std::string small = folder_.file("small");
    fs::create_directories(small);
    return run(arguments, [&] {
      if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("none", small.c_str(), "tmpfs", 0, "size=64k") != 0)
        ::_exit(126);
      if (fill) fill();
    });
  }
};

TEST_F(FullDisk, IsSaidBeforePassAndLeavesTheOlderFile) {
  const std::string small = folder_.file("small"), file = small + "/result.json";
  const CommandResult result =
      runOnSmallDisk({"validate", folder_.file("mlp.plan"), "--steps", "1", "--json", file}, [&] {
        writeFile(file, "{}");
        writeFile(small + "/fill", std::string(64 << 10, 'x'));  // as much of it as there is room for
      });
  if (result.exit_code == 126) GTEST_SKIP() << "mounts are not allowed here";
  EXPECT_EQ(result.exit_code, 73) << result.output << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("No space left on device"));
  EXPECT_THAT(result.output, Not(HasSubstr("PASS")));
}

TEST_F(FullDisk, RefusesCheckpointsAndDumpsThatCannotFit) {
  const std::string small = folder_.file("small");
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--checkpoint", small + "/saved"},
                                               {"--dump", small + "/dump", "--steps", "1000"}}) {
    std::vector<std::string> arguments{"run", folder_.file("mlp.plan")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result =
        runOnSmallDisk(arguments, [&] { writeFile(small + "/fill", std::string(52 << 10, 'x')); });
    if (result.exit_code == 126) GTEST_SKIP() << "mounts are not allowed here";
    EXPECT_EQ(result.exit_code, 73) << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(" needs "));
    EXPECT_THAT(result.errors, HasSubstr("are free; make room"));
    EXPECT_THAT(result.output, Not(HasSubstr("step 1/")));
  }
}

// Before a step is done, or a plan is searched for.
TEST_F(FullDisk, RefusesTracesAndPlansThatCannotFit) {
  const std::string small = folder_.file("small");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"run", folder_.file("mlp.plan"), "--steps", "20", "--trace",
                                 small + "/trace.json"},
        {"validate", folder_.file("mlp.plan"), "--steps", "20", "--trace", small + "/trace.json"},
        {"plan", folder_.file("mlp.onnx"), "--cluster", "1x2", "-o", small + "/plan"}}) {
    const CommandResult result =
        runOnSmallDisk(words, [&] { writeFile(small + "/fill", std::string(52 << 10, 'x')); });
    if (result.exit_code == 126) GTEST_SKIP() << "mounts are not allowed here";
    EXPECT_EQ(result.exit_code, 73) << words[0] << ": " << result.errors;
    EXPECT_THAT(result.errors,
                HasSubstr(words[0] == "plan" ? "a plan needs 64.0 KiB, but " : "the trace needs "));
    EXPECT_THAT(result.errors, HasSubstr("are free; make room"));
    EXPECT_THAT(result.output, Not(HasSubstr("step 1/")));
  }
}

// Nobody reads it: nothing waits.
TEST_F(Limits, ANamedPipeIsNoPlaceForAResult) {
  const std::string pipe = folder_.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
  const CommandResult result = runStep([] {}, {"--json", pipe});
  EXPECT_EQ(result.exit_code, 78);
  EXPECT_THAT(result.errors, HasSubstr("a named pipe that nobody reads"));
}

}  // namespace
}  // namespace pipeshard
