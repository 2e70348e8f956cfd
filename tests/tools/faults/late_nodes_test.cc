// Nodes of a job that ends before they can join it: the coordinator has nothing to do, or refuses.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class LateNodes : public ::testing::Test {
 protected:
  struct Process {
    pid_t pid = -1;
    std::string name;
  };

  // What a test that has failed has left.
  ~LateNodes() override {
    for (const pid_t pid : processesMentioning(folder_.path().string())) ::kill(pid, SIGKILL);
  }

  Process start(const std::string& name, const std::vector<std::string>& arguments) {
    return {startPipeshard(arguments, folder_.file(name + ".out"), folder_.file(name + ".err")), name};
  }
  CommandResult finish(const Process& process, seconds limit = seconds(60)) {
    return finishPipeshard(process.pid, folder_.file(process.name + ".out"),
                           folder_.file(process.name + ".err"), limit);
  }
  void plan() {
    const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "2x2", "--stages",
                                                "uniform:4", "--microbatches", "4", "-o", plan_});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  Process startNode(const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"node", "--key-file", key_, "--wait", "30"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return start(name, arguments);
  }
  bool waits(const Process& node) const {
    return readFile(folder_.file(node.name + ".err")).find("waiting for") != std::string::npos;
  }
  void startWaitingNodes() {
    for (const char* said : {"node0.err", "node1.err"}) std::filesystem::remove(folder_.file(said));
    first_ = startNode("node0");
    second_ = startNode("node1");
    ASSERT_TRUE(eventually([&] { return waits(first_) && waits(second_); }, seconds(20)));
  }
  Process startRun(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"run",        plan_, "--listen",       "tcp://127.0.0.1:*",
                                       "--key-file", key_,  "--node-timeout", "30"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return start("run", arguments);
  }
  void expectNothingLeft() {
    EXPECT_TRUE(eventually([&] { return processesMentioning(plan_).empty(); }, seconds(5)));
    EXPECT_FALSE(std::filesystem::exists(key_));
  }

  TemporaryFolder folder_;
  std::string key_ = folder_.file("job.key");
  std::string plan_ = folder_.file("job.plan");
  Process run_, first_, second_;
};

// Of a job that is requeued when all is done, say: whoever waits for it hears so.
TEST_F(LateNodes, AFinishedJobThatIsStartedAgainEndsWellOnAllNodes) {
  plan();
  const std::vector<std::string> done = {"--steps", "2", "--checkpoint", folder_.file("saved")};
  std::vector<std::string> here = {"run", plan_};
  here.insert(here.end(), done.begin(), done.end());
  const CommandResult trained = runPipeshard(here);
  ASSERT_EQ(trained.exit_code, 0) << trained.errors;
  startWaitingNodes();
  run_ = startRun(done);
  const CommandResult again = finish(run_, seconds(20));
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.output, HasSubstr("nothing is left to do"));
  for (const Process& node : {first_, second_}) {
    const CommandResult ended = finish(node, seconds(5));
    EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    EXPECT_THAT(ended.errors, HasSubstr("the job is done"));
  }
  expectNothingLeft();
}

// Before it listens (no such plan), and behind that (the folder of its checkpoints cannot be made).
TEST_F(LateNodes, ACoordinatorThatRefusesTellsItsNodesWhy) {
  plan();
  writeFile(folder_.file("no_folder"), "");
  for (const bool has_plan : {false, true}) {
    if (!has_plan) std::filesystem::rename(plan_, plan_ + ".elsewhere");
    startWaitingNodes();
    run_ = startRun({"--checkpoint", folder_.file(has_plan ? "no_folder/saved" : "saved")});
    const CommandResult refused = finish(run_, seconds(20));
    EXPECT_THAT(refused.exit_code, ::testing::AnyOf(66, 73, 78)) << refused.errors;
    const size_t at = refused.errors.rfind(": ");
    ASSERT_NE(at, std::string::npos);
    const std::string why = refused.errors.substr(at + 2, refused.errors.find('\n', at) - at - 2);
    for (const Process& node : {first_, second_}) {
      const CommandResult ended = finish(node, seconds(5));
      EXPECT_EQ(ended.exit_code, refused.exit_code) << ended.errors;
      EXPECT_THAT(ended.errors, HasSubstr("the job is over: "));
      EXPECT_THAT(ended.errors, HasSubstr(why));
    }
    expectNothingLeft();
    if (!has_plan) std::filesystem::rename(plan_ + ".elsewhere", plan_);
  }
}

// That of the daemon which starts it, as under a launcher: a command line that cannot be read never listens.
TEST_F(LateNodes, ACommandThatEndsBeforeItListensEndsTheNodesOfOtherHosts) {
  second_ = startNode("node1", {"--index", "1"});
  first_ =
      startNode("node0", {"--index", "0", "--join", "tcp://127.0.0.1:*", "run", plan_, "--no-such-option"});
  EXPECT_EQ(finish(first_, seconds(20)).exit_code, 64);
  const CommandResult other = finish(second_, seconds(5));
  EXPECT_EQ(other.exit_code, 64) << other.errors;
  EXPECT_THAT(other.errors, HasSubstr("`run` has ended with 64 before nodes could join"));
  expectNothingLeft();
}

// A command that is refused is no reason to take the key file of a job that runs.
TEST_F(LateNodes, ARefusedCommandLeavesTheKeyFileOfAnotherJob) {
  plan();
  run_ = startRun();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(key_); }, seconds(10)));
  const std::string keys = readFile(key_);
  const CommandResult refused =
      runPipeshard({"run", folder_.file("no.plan"), "--listen", "tcp://127.0.0.1:*", "--key-file", key_});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_EQ(readFile(key_), keys);
  kill(run_.pid, SIGTERM);
  finish(run_);
}

TEST_F(LateNodes, KeysAndNoKeysContradictEachOther) {
  plan();
  const CommandResult run =
      runPipeshard({"run", plan_, "--listen", "tcp://127.0.0.1:*", "--key-file", key_, "--insecure"});
  EXPECT_EQ(run.exit_code, 64);
  EXPECT_THAT(run.errors, HasSubstr("--insecure listens without keys, and --key-file "));
  const CommandResult node =
      runPipeshard({"node", "--join", "tcp://127.0.0.1:1", "--key-file", key_, "--insecure", "--wait", "1"});
  EXPECT_EQ(node.exit_code, 64);
  EXPECT_THAT(node.errors, HasSubstr("--insecure joins without keys, and the key file "));
}

}  // namespace
}  // namespace pipeshard
