// Two hosts of one job that have different files under the same paths: the second "host" is a daemon in a
// mount namespace of its own. For targets that define PIPESHARD_EXECUTABLE and PIPESHARD_SOURCE_DIR.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "tests/tools/command.h"

namespace pipeshard {

inline bool mayMount() {
  const pid_t child = ::fork();
  if (child == 0)
    ::_exit(::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0
                ? 0
                : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A program or library, with another build id than the linker's.
inline std::string withOtherBuildId(std::string object) {
  const std::string note{"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0", 16};
  const size_t id = object.find(note);
  EXPECT_NE(id, std::string::npos) << "the linker makes no build ids";
  for (size_t i = 0; i < 4 && id != std::string::npos; ++i) object[id + note.size() + i] ^= 0x5a;
  return object;
}

class OtherFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!mayMount()) GTEST_SKIP() << "mount namespaces are not allowed here";
    std::filesystem::copy(std::filesystem::path(PIPESHARD_SOURCE_DIR) / "examples/mlp.onnx",
                          folder_.path() / "mlp.onnx");
    std::filesystem::copy(std::filesystem::path(PIPESHARD_SOURCE_DIR) / "examples/mlp.onnx.data",
                          folder_.path() / "mlp.onnx.data");
    const CommandResult planned = runPipeshard({"plan", folder_.file("mlp.onnx"), "--cluster", "2x2",
                                                "--stages", "uniform:4", "--microbatches", "4", "-o", plan_});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }

  // A daemon to which `file` is what is in `other`; "": nothing is other.
  pid_t startNode(const std::string& name, const std::string& file, const std::string& other,
                  const std::string& executable = PIPESHARD_EXECUTABLE) {
    const std::string errors = folder_.file(name + ".err");
    const pid_t child = ::fork();
    if (child != 0) return child;
    const int out = ::open(errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    ::dup2(out, STDERR_FILENO);
    ::dup2(out, STDOUT_FILENO);
    if (!file.empty() &&
        (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
         ::mount(other.c_str(), file.c_str(), nullptr, MS_BIND, nullptr) != 0))
      ::_exit(126);
    ::execl(executable.c_str(), "pipeshard", "node", "--key-file", key_.c_str(), "--wait", "30", nullptr);
    ::_exit(127);
  }
  int exitCodeOf(pid_t node) {
    int status = -1;
    const bool ended =
        eventually([&] { return ::waitpid(node, &status, WNOHANG) == node; }, std::chrono::seconds(20));
    if (!ended) ::kill(node, SIGKILL);
    return ended && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  CommandResult runWith(pid_t& first, pid_t& second, const std::function<pid_t()>& start_second,
                        const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{
        "run",        plan_, "--steps",        "3", "--listen", "tcp://127.0.0.1:*",
        "--key-file", key_,  "--node-timeout", "30"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const pid_t run = startPipeshard(arguments, folder_.path() / "run.out", folder_.path() / "run.err");
    first = startNode("first", "", "");
    second = start_second();
    return finishPipeshard(run, folder_.path() / "run.out", folder_.path() / "run.err",
                           std::chrono::seconds(60));
  }
  void expectRefused(const std::string& file, const std::vector<std::string>& more = {}) {
    std::string content = readFile(file);
    ASSERT_FALSE(content.empty()) << file;
    content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 1);
    const std::string other = folder_.write("other", content);
    pid_t first = -1, second = -1;
    const CommandResult result = runWith(
        first, second, [&] { return startNode("second", file, other); }, more);
    EXPECT_EQ(result.exit_code, 76) << result.output << result.errors;
    EXPECT_THAT(result.errors, ::testing::HasSubstr(file + " is another file on"));
    EXPECT_THAT(result.errors, ::testing::ContainsRegex("digest [0-9a-f]{16}.*digest [0-9a-f]{16}"));
    EXPECT_THAT(result.output, ::testing::Not(::testing::HasSubstr("step 1/"))) << "before the first step";
    EXPECT_EQ(exitCodeOf(first), 76);
    EXPECT_EQ(exitCodeOf(second), 76);
  }

  TemporaryFolder folder_;
  std::string plan_ = folder_.file("job.plan");
  std::string key_ = folder_.file("job.key");
};

}  // namespace pipeshard
