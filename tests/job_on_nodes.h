// A coordinator that listens and a daemon for each node, all on this machine, as users start them.
#pragma once

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace pipeshard {

class JobOnNodes : public ::testing::Test {
 protected:
  // What a test that has failed has left.
  ~JobOnNodes() override {
    for (const pid_t pid : processesMentioning(folder_.path().string())) ::kill(pid, SIGKILL);
  }

  std::string at(const std::string& name) const { return folder_.file(name); }
  CommandProcess start(const std::string& name, const std::vector<std::string>& arguments) const {
    return {folder_.path(), name, arguments};
  }
  CommandProcess startNode(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments{"node", "--key-file", key_, "--wait", wait_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return start(name, arguments);
  }
  // A command that listens for them, as long as they wait for it unless it is told otherwise.
  CommandProcess startListening(const std::string& name, std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--listen", "tcp://127.0.0.1:*", "--key-file", key_});
    if (std::find(arguments.begin(), arguments.end(), "--node-timeout") == arguments.end())
      arguments.insert(arguments.end(), {"--node-timeout", wait_});
    return start(name, arguments);
  }

  // Waits for its end, which docs/nodes.md promises within so many seconds.
  static CommandResult finishWithin(int seconds, const CommandProcess& process) {
    CommandResult result = process.finish();
    EXPECT_LT(result.seconds, seconds + kSlack.count()) << result.errors;
    return result;
  }

  // -1: there is none.
  pid_t workerOf(int rank) const {
    const std::vector<pid_t> found = workersOf(plan_, rank);
    return found.empty() ? -1 : found.front();
  }
  // All that this test has started has ended, and the key file is gone.
  void expectNothingLeft() const {
    const auto nothing = [&] { return processesMentioning(folder_.path().string()).empty(); };
    EXPECT_TRUE(eventually(nothing, std::chrono::seconds(5) + kSlack));  // docs/nodes.md
    EXPECT_FALSE(std::filesystem::exists(key_));
  }

  TemporaryFolder folder_;
  std::string key_ = folder_.file("job.key");
  std::string plan_ = folder_.file("job.plan");
  std::string wait_ = "60";  // seconds, for each other
};

}  // namespace pipeshard
