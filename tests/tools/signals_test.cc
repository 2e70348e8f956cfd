// What happens around a command: signals, terminals that die, descriptors that are closed.
#include <csignal>
#include <set>
#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "tests/sanitizers.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class SignalsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "1x2", "-o", plan()}).exit_code, 0);
  }

  std::string plan() const { return at("my.plan"); }
  std::string at(const std::string& name) const { return folder_.file(name); }
  std::vector<std::string> runOf(int steps) const {
    return {"run", plan(), "--steps", std::to_string(steps), "--json", at("run.json")};
  }
  size_t stepsOf() const { return nlohmann::json::parse(readFile(at("run.json"))).at("steps").size(); }

  // Runs the command where `prepare` has been called, between fork and exec.
  template <typename Prepare>
  pid_t start(std::vector<std::string> arguments, const Prepare& prepare) const {
    arguments.insert(arguments.begin(), PIPESHARD_EXECUTABLE);
    const pid_t pid = ::fork();
    if (pid > 0) return pid;
    ::setenv("PIPESHARD_PROFILE", "off", 1);
    prepare();
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }

  int codeOf(pid_t pid) const { return finishPipeshard(pid, at("out"), at("err"), kPatience).exit_code; }
  int codeOf(const std::vector<std::string>& arguments, const std::string& redirection) const {
    return codeOf(start(arguments, [&] {
      for (const char digit : redirection) ::close(digit - '0');
    }));
  }

  // On a terminal of its own, that dies when it has shown `text`.
  int codeOnDyingTerminal(const std::vector<std::string>& arguments, bool nohup) const {
    int terminal = -1, inside = -1;
    EXPECT_EQ(::openpty(&terminal, &inside, nullptr, nullptr, nullptr), 0);
    const pid_t pid = start(arguments, [&] {
      ::setsid();
      ::ioctl(inside, TIOCSCTTY, 0);
      for (const int descriptor : {0, 1, 2}) ::dup2(inside, descriptor);
      ::close(terminal);
      ::close(inside);
      if (nohup) ::signal(SIGHUP, SIG_IGN);
    });
    ::close(inside);
    std::string shown;
    char buffer[256];
    while (shown.find("step ") == std::string::npos) {
      const ssize_t got = ::read(terminal, buffer, sizeof buffer);
      if (got <= 0) break;
      shown.append(buffer, static_cast<size_t>(got));
    }
    EXPECT_THAT(shown, HasSubstr("step "));
    ::close(terminal);
    return codeOf(pid);
  }

  TemporaryFolder folder_;
};

TEST_F(SignalsTest, UnderNohupItGoesOn) {
  ::signal(SIGHUP, SIG_IGN);  // the child inherits it
  const pid_t pid = startPipeshard(runOf(5'000), at("out"), at("err"));
  ::signal(SIGHUP, SIG_DFL);
  ASSERT_TRUE(eventually([&] { return readFile(at("out")).find("step ") != std::string::npos; }, kPatience));
  for (const pid_t process : processesMentioning(plan())) ::kill(process, SIGHUP);
  EXPECT_EQ(codeOf(pid), 0) << readFile(at("err"));
  EXPECT_EQ(stepsOf(), 5'000U);
}

TEST_F(SignalsTest, WithoutACheckpointTheSignalIsTheCode) {
  for (const int signal : {SIGUSR1, SIGHUP}) {
    std::filesystem::remove(at("out"));
    const pid_t pid = startPipeshard(runOf(10'000'000), at("out"), at("err"));
    ASSERT_TRUE(
        eventually([&] { return readFile(at("out")).find("step ") != std::string::npos; }, kPatience));
    // as Slurm does, and a terminal that closes: to all of them
    for (const pid_t process : processesMentioning(plan())) ::kill(process, signal);
    EXPECT_EQ(codeOf(pid), 128 + signal);
    EXPECT_THAT(readFile(at("err")), HasSubstr(signal == SIGUSR1 ? "by SIGUSR1" : "by SIGHUP"));
    EXPECT_THAT(readFile(at("err")), testing::Not(HasSubstr("requeue")));
    EXPECT_THAT(readFile(at("out")), HasSubstr("the trained weights are gone now"));
    EXPECT_THAT(processesMentioning(plan()), IsEmpty());
  }
}

TEST_F(SignalsTest, PlanningThatIsStoppedEndsWithTheSignal) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const pid_t pid = startPipeshard({"plan", "examples/gpt2.onnx", "--cluster", "4x8", "--stages", "auto",
                                      "--microbatches", "8", "--dim", "batch=256", "-o", at("other.plan")},
                                     at("out"), at("err"));
    // its name is its command line only after exec
    ASSERT_TRUE(eventually([&] { return !processesMentioning(at("other.plan")).empty(); }, kPatience));
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    ::kill(pid, signal);
    EXPECT_EQ(codeOf(pid), 128 + signal) << readFile(at("err"));
    EXPECT_FALSE(std::filesystem::exists(at("other.plan")));
  }
}

TEST_F(SignalsTest, ADeadTerminalEndsARunByItsSignalAlone) {
  EXPECT_EQ(codeOnDyingTerminal(runOf(10'000'000), false), 128 + SIGHUP);
  EXPECT_EQ(codeOnDyingTerminal(runOf(5'000), true), 0);
  EXPECT_EQ(stepsOf(), 5'000U);
  EXPECT_THAT(processesMentioning(plan()), IsEmpty());
}

TEST_F(SignalsTest, ClosedDescriptorsAreNobodysFiles) {
  for (const char* closed : {"0", "1", "2", "01", "02", "12", "012"}) {
    std::filesystem::remove(at("run.json"));
    EXPECT_EQ(codeOf(runOf(3), closed), 0) << closed;
    EXPECT_EQ(stepsOf(), 3U) << closed;
    EXPECT_EQ(codeOf({"explain", at("none")}, closed), 66) << closed;
    EXPECT_EQ(codeOf({"validate", plan()}, closed), 0) << closed;
  }
}

// As `run ... | head` does.
TEST_F(SignalsTest, AReaderThatIsGoneEndsARunThatSaves) {
  for (const bool saves : {true, false}) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    std::vector<std::string> arguments = runOf(10'000'000);
    if (saves) arguments.insert(arguments.end(), {"--checkpoint", at("saved")});
    const pid_t pid = start(arguments, [&] {
      ::signal(SIGPIPE, SIG_DFL);
      ::dup2(ends[1], STDOUT_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
    });
    ::close(ends[1]);
    std::string shown;
    char buffer[256];
    for (ssize_t got = 1; got > 0 && shown.find("step ") == std::string::npos;) {
      got = ::read(ends[0], buffer, sizeof buffer);
      if (got > 0) shown.append(buffer, static_cast<size_t>(got));
    }
    ::close(ends[0]);
    EXPECT_EQ(codeOf(pid), saves ? 75 : 128 + SIGPIPE);
    EXPECT_GT(stepsOf(), 0U);
    EXPECT_THAT(processesMentioning(plan()), IsEmpty());
  }
  EXPECT_FALSE(std::filesystem::is_empty(at("saved")));
}

// As `simulate ... | head -1` may do, whose reader is gone before the first line.
TEST_F(SignalsTest, AReaderThatIsGoneTakesNoFileFromWhatIsPrintedFirst) {
  const auto codeWithoutReader = [&](const std::vector<std::string>& arguments) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t pid = start(arguments, [&] {
      ::signal(SIGPIPE, SIG_DFL);
      ::dup2(ends[1], STDOUT_FILENO);
      ::close(ends[0]);
      ::close(ends[1]);
    });
    ::close(ends[0]);
    ::close(ends[1]);
    return codeOf(pid);
  };
  EXPECT_EQ(codeWithoutReader({"simulate", "--schedule", "zb-1p", "--p", "5", "--m", "20", "--json",
                               at("s.json"), "--csv", at("s.csv"), "--trace", at("t.json")}),
            0)
      << readFile(at("err"));
  EXPECT_EQ(nlohmann::json::parse(readFile(at("s.json"))).at("ranks"), 5);
  EXPECT_TRUE(std::filesystem::exists(at("s.csv")));
  EXPECT_TRUE(std::filesystem::exists(at("t.json")));
  EXPECT_EQ(codeWithoutReader({"inspect", PIPESHARD_SOURCE_DIR "/examples/mlp.onnx", "--json", at("i.json")}),
            0);
  EXPECT_TRUE(std::filesystem::exists(at("i.json")));
  EXPECT_EQ(codeWithoutReader(runOf(10'000'000)), 128 + SIGPIPE);  // a run ends all the same
}

TEST_F(SignalsTest, AFullDiskUnderStandardOutputIsSaid) {
  const CommandResult result = finishPipeshard(startPipeshard({"explain", plan()}, "/dev/full", at("err")),
                                               at("out"), at("err"), kPatience);
  EXPECT_EQ(result.exit_code, 73);
  EXPECT_THAT(result.errors, HasSubstr("standard output cannot be written: No space left on device"));
  const pid_t run = startPipeshard(runOf(3), "/dev/full", at("err"));
  EXPECT_EQ(codeOf(run), 73);
  EXPECT_EQ(stepsOf(), 3U);  // it was done, and is kept
}

TEST_F(SignalsTest, AHundredMillionStepsAreNoMatterOfMemory) {
  SKIP_UNDER_SANITIZERS("their shadow of the memory counts as resident");
  const pid_t pid = startPipeshard(runOf(100'000'000), at("out"), at("err"));
  ASSERT_TRUE(
      eventually([&] { return readFile(at("out")).find("step 1/") != std::string::npos; }, kPatience));
  std::this_thread::sleep_for(std::chrono::seconds(2));
  ::kill(pid, SIGTERM);
  const CommandResult ended = finishPipeshard(pid, at("out"), at("err"), kPatience);
  EXPECT_EQ(ended.exit_code, 128 + SIGTERM);
  EXPECT_LT(ended.peak_kilobytes, 300'000);
}

TEST_F(SignalsTest, AFolderOfDumpsHasOneWriter) {
  std::vector<std::string> arguments = runOf(10'000'000);
  arguments.insert(arguments.end(), {"--dump", at("dump")});
  const pid_t pid = startPipeshard(arguments, at("out"), at("err"));
  ASSERT_TRUE(eventually([&] { return readFile(at("out")).find("step ") != std::string::npos; }, kPatience));
  EXPECT_THAT(readFile(at("dump/lock")), testing::StartsWith(std::to_string(pid)));
  const int lock = ::open(at("dump/lock").c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_NE(::flock(lock, LOCK_EX | LOCK_NB), 0);
  ::close(lock);
  ::kill(pid, SIGTERM);
  EXPECT_EQ(codeOf(pid), 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(at("dump/lock")));
}

// Over both of its jobs, and while it compares; and nobody else is to read what it has of a training.
TEST_F(SignalsTest, AFolderOfComparedTensorsHasOneWriter) {
  const std::vector<std::string> validation{"validate", plan(), "--steps", "100000", "--dump", at("dump")};
  const pid_t pid = startPipeshard(validation, at("out"), at("err"));
  const std::string first = at("dump/planned/step-000001.rank-0000.safetensors");
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(first); }, kPatience)) << readFile(at("err"));
  EXPECT_THAT(readFile(at("dump/lock")), testing::StartsWith(std::to_string(pid)));
  using std::filesystem::perms;
  for (const std::string& folder : {at("dump"), at("dump/planned")})
    EXPECT_EQ(std::filesystem::status(folder).permissions(), perms::owner_all) << folder;
  EXPECT_EQ(std::filesystem::status(first).permissions(), perms::owner_read | perms::owner_write);
  for (const char* command : {"validate", "run"}) {
    const CommandResult second = runPipeshard({command, plan(), "--steps", "1", "--dump", at("dump")});
    EXPECT_EQ(second.exit_code, 84) << command << ": " << second.output << second.errors;
    EXPECT_THAT(second.errors, HasSubstr("(process " + std::to_string(pid)));
  }
  EXPECT_TRUE(std::filesystem::exists(first));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(codeOf(pid), 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(at("dump/lock")));
}

// Of a worker's environment all but the number of its threads is the command's own: the keys of a job are not
// in it.
TEST_F(SignalsTest, WorkersGetNoSecretByTheirEnvironment) {
  const auto environmentOf = [](pid_t process) {
    std::istringstream text(readFile("/proc/" + std::to_string(process) + "/environ"));
    std::set<std::string> variables;
    for (std::string variable; std::getline(text, variable, '\0');) {
      if (!variable.starts_with("OMP_NUM_THREADS=")) variables.insert(variable);
    }
    return variables;
  };
  const pid_t pid = startPipeshard(runOf(10'000'000), at("out"), at("err"));
  ASSERT_TRUE(eventually([&] { return readFile(at("out")).find("step ") != std::string::npos; }, kPatience));
  const std::vector<pid_t> workers = workersOf(plan());
  EXPECT_EQ(workers.size(), 2U);
  for (const pid_t worker : workers) EXPECT_EQ(environmentOf(worker), environmentOf(pid));
  ::kill(pid, SIGTERM);
  EXPECT_EQ(codeOf(pid), 128 + SIGTERM);
}

TEST_F(SignalsTest, AnUnknownOptionIsShownWithoutItsControlCharacters) {
  const CommandResult result = runPipeshard({"run", plan(), "--\x1b[31mred"});
  EXPECT_EQ(result.exit_code, 64);
  EXPECT_THAT(result.errors, HasSubstr("--\\x1b[31mred"));
}

}  // namespace
}  // namespace pipeshard
