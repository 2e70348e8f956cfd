// Nodes of a job that ends before they can join it: the coordinator has nothing to do, or refuses.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/job_on_nodes.h"

namespace pipeshard {
namespace {

using ::testing::HasSubstr;

class LateNodes : public JobOnNodes {
 protected:
  void plan() {
    const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "2x2", "--stages",
                                                "uniform:4", "--microbatches", "4", "-o", plan_});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  void startWaitingNodes() {
    first_ = startNode("node0");
    second_ = startNode("node1");
    ASSERT_TRUE(first_.comes("waiting for"));
    ASSERT_TRUE(second_.comes("waiting for"));
  }
  CommandProcess startRun(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"run", plan_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return startListening("run", arguments);
  }

  CommandProcess run_, first_, second_;
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
  const CommandResult again = run_.finish();
  EXPECT_EQ(again.exit_code, 0) << again.errors;
  EXPECT_THAT(again.output, HasSubstr("nothing is left to do"));
  for (const CommandProcess& node : {first_, second_}) {
    const CommandResult ended = node.finish();
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
    const CommandResult refused = run_.finish();
    EXPECT_THAT(refused.exit_code, ::testing::AnyOf(66, 73, 78)) << refused.errors;
    const size_t at = refused.errors.rfind(": ");
    ASSERT_NE(at, std::string::npos);
    const std::string why = refused.errors.substr(at + 2, refused.errors.find('\n', at) - at - 2);
    for (const CommandProcess& node : {first_, second_}) {
      const CommandResult ended = node.finish();
      EXPECT_EQ(ended.exit_code, refused.exit_code) << ended.errors;
      EXPECT_THAT(ended.errors, HasSubstr("the job is over: "));
      EXPECT_THAT(ended.errors, HasSubstr(why));
    }
    expectNothingLeft();
    if (!has_plan) std::filesystem::rename(plan_ + ".elsewhere", plan_);
  }
}

// Whoever started it need not wait for the reason until nodes have been told.
TEST_F(LateNodes, ARefusedCommandSaysWhyAtOnce) {
  plan();
  const std::vector<std::string> nodes = {"--listen", "tcp://127.0.0.1:*", "--key-file", key_};
  for (std::vector<std::string> command : {std::vector<std::string>{"run", folder_.file("no.plan")},
                                           std::vector<std::string>{"run", plan_, "--on-nan", "rewind"},
                                           std::vector<std::string>{"validate", folder_.file("no.plan")}}) {
    command.insert(command.end(), nodes.begin(), nodes.end());
    const CommandResult refused = runPipeshard(command);
    const size_t reason = refused.errors.find("pipeshard: "),
                 told = refused.errors.find("nodes that come within");
    EXPECT_NE(refused.exit_code, 0);
    ASSERT_NE(told, std::string::npos) << refused.errors;
    EXPECT_LT(reason, told) << refused.errors;
    EXPECT_EQ(refused.errors.rfind("pipeshard: "), reason) << refused.errors;  // once
  }
}

// That of the daemon which starts it, as under a launcher: a command line that cannot be read never listens.
TEST_F(LateNodes, ACommandThatEndsBeforeItListensEndsTheNodesOfOtherHosts) {
  second_ = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(second_.comes("waiting for"));  // a node that comes later is not told
  first_ =
      startNode("node0", {"--index", "0", "--join", "tcp://127.0.0.1:*", "run", plan_, "--no-such-option"});
  EXPECT_EQ(first_.finish().exit_code, 64);
  const CommandResult other = second_.finish();
  EXPECT_EQ(other.exit_code, 64) << other.errors;
  EXPECT_THAT(other.errors, HasSubstr("`run` has ended with 64 before nodes could join"));
  expectNothingLeft();
}

// A command that is refused is no reason to take the key file of a job that runs.
TEST_F(LateNodes, ARefusedCommandLeavesTheKeyFileOfAnotherJob) {
  plan();
  run_ = startRun();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(key_); }, kPatience));
  const std::string keys = readFile(key_);
  const CommandResult refused =
      runPipeshard({"run", folder_.file("no.plan"), "--listen", "tcp://127.0.0.1:*", "--key-file", key_});
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_EQ(readFile(key_), keys);
  kill(run_.pid(), SIGTERM);
  run_.finish();
}

TEST_F(LateNodes, TwoJobsDoNotHaveOneKeyFile) {
  plan();
  run_ = startRun();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(key_); }, kPatience));
  const std::string keys = readFile(key_);
  const CommandResult second = runPipeshard(
      {"run", plan_, "--listen", "tcp://127.0.0.1:*", "--key-file", key_, "--node-timeout", "1"});
  EXPECT_EQ(second.exit_code, 84) << second.errors;
  EXPECT_THAT(second.errors, HasSubstr("another job has its keys in " + key_));
  EXPECT_THAT(second.errors, HasSubstr(std::to_string(run_.pid())));
  EXPECT_EQ(readFile(key_), keys);
  kill(run_.pid(), SIGKILL);  // what it leaves is replaced
  run_.finish();
  EXPECT_EQ(readFile(key_), keys);
  run_ = startListening("third", {"run", plan_});
  EXPECT_TRUE(eventually([&] { return readFile(key_) != keys; }, kPatience));
  kill(run_.pid(), SIGTERM);
  run_.finish();
  expectNothingLeft();
  EXPECT_FALSE(std::filesystem::exists(key_ + ".lock"));
}

// What is given behind the command is the command's: how long it waits for its nodes, too.
TEST_F(LateNodes, ACommandMaySayItselfHowLongItWaits) {
  plan();
  first_ = startNode("node0", {"--index", "0", "run", plan_, "--steps", "3", "--node-timeout", "1"});
  const CommandResult result = first_.finish();
  EXPECT_EQ(result.exit_code, 69) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("not all nodes have joined within 1 s"));
  expectNothingLeft();
}

// A name that nobody knows may come to be known; meanwhile it is said that it is not.
TEST_F(LateNodes, ANodeSaysThatItDoesNotKnowTheNameOfItsCoordinator) {
  const CommandResult result =
      runPipeshard({"node", "--join", "tcp://no-such-host.invalid:7000", "--insecure", "--wait", "1"});
  EXPECT_EQ(result.exit_code, 69);
  EXPECT_THAT(result.errors,
              HasSubstr("waiting for a coordinator at tcp://no-such-host.invalid:7000: its name"));
  EXPECT_THAT(result.errors, HasSubstr("within 1 s: its name has no address on this host"));
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
