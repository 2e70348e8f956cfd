// A node daemon with a command of its own, before any coordinator is there.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/job/job.h"
#include "runtime/job/node.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

using std::chrono::milliseconds;

constexpr int kInterrupted = 42;

template <typename Condition>
bool soon(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(20));
  }
  return false;
}

TEST(NodeCommand, ThatIgnoresASignalIsKilledInTheEnd) {
  const TemporaryFolder folder;
  const std::string ready = folder.file("ready");
  NodeOptions options;
  options.key_file = folder.file("never.key");
  options.executable = "/bin/sh";
  options.command = {"-c", "trap '' TERM; touch '" + ready + "'; while :; do sleep 0.1; done"};
  options.command_end = milliseconds(300);
  const pid_t daemon = ::fork();
  if (daemon == 0) {
    try {
      runNode(options, [](const std::string&) {});
    } catch (const JobInterrupted&) {
      ::_exit(kInterrupted);
    } catch (...) {
    }
    ::_exit(0);
  }
  ASSERT_GT(daemon, 0);
  EXPECT_TRUE(soon([&] { return std::filesystem::exists(ready); }));
  ::kill(daemon, SIGTERM);
  int status = 0;
  const bool ended = soon([&] { return ::waitpid(daemon, &status, WNOHANG) == daemon; });
  EXPECT_TRUE(ended) << "it waits for its command without end";
  if (!ended) {
    ::kill(daemon, SIGKILL);
    ::waitpid(daemon, &status, 0);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kInterrupted) << status;
}

}  // namespace
}  // namespace pipeshard
