// `run --restarts` on nodes: daemons and workers are killed, come back, and are asked to end.
#include <csignal>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class NodeRestarts : public ::testing::Test {
 protected:
  struct Process {
    pid_t pid = -1;
    std::string name;
  };

  // What a test that has failed has left.
  ~NodeRestarts() override {
    for (const pid_t pid : processesMentioning(folder_.path().string())) ::kill(pid, SIGKILL);
  }

  std::string at(const std::string& name) const { return folder_.file(name); }
  Process start(const std::string& name, const std::vector<std::string>& arguments) {
    return {startPipeshard(arguments, at(name + ".out"), at(name + ".err")), name};
  }
  CommandResult finish(const Process& process, seconds limit = seconds(60)) {
    return finishPipeshard(process.pid, at(process.name + ".out"), at(process.name + ".err"), limit);
  }
  std::string errorsOf(const Process& process) const { return readFile(at(process.name + ".err")); }

  void plan(const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"plan",           model_,        "--optimizer", "adamw:lr=1e-3",
                                          "--microbatches", microbatches_, "-o",          plan_};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const CommandResult planned = runPipeshard(arguments);
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  Process startNode(const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"node", "--key-file", at("job.key"), "--wait", "20"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return start(name, arguments);
  }
  void startRun(int64_t steps, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"run",          plan_,         "--steps",        std::to_string(steps),
                                       "--checkpoint", at("saved"),   "--every",        every_,
                                       "--restarts",   "5",           "--listen",       "tcp://127.0.0.1:*",
                                       "--key-file",   at("job.key"), "--node-timeout", "20"};
    // Each node takes all processors of this machine else.
    arguments.insert(arguments.end(), {"--threads", "1"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    run_ = start("run", arguments);
  }
  bool comes(const Process& process, const std::string& text, seconds limit = seconds(30)) const {
    return eventually(
        [&] {
          return (errorsOf(process) + readFile(at(process.name + ".out"))).find(text) != std::string::npos;
        },
        limit);
  }
  pid_t workerOf(int rank) const {
    for (const pid_t pid : workersOf(plan_, rank)) return pid;
    return -1;
  }
  static void killWorker(const std::string& plan, int rank) {
    const std::vector<pid_t> found = workersOf(plan, rank);
    ASSERT_EQ(found.size(), 1u) << plan;
    ::kill(found[0], SIGKILL);
  }
  // 20 examples of the MLP.
  static std::string heldOut() {
    std::string lines;
    for (int row = 0; row < 20; ++row) {
      nlohmann::json example;
      for (int feature = 0; feature < 32; ++feature) {
        example["x"].push_back(0.01 * (row * feature % 37));
        example["y"].push_back(0.1 * (row * feature % 7));
      }
      lines += example.dump() + "\n";
    }
    return lines;
  }
  static std::vector<double> lossesIn(const std::string& path) {
    std::vector<double> losses;
    std::istringstream lines(readFile(path));
    for (std::string line; std::getline(lines, line);)
      losses.push_back(nlohmann::json::parse(line)["loss"].get<double>());
    return losses;
  }
  // Of the line that says so of this restart; -1: there is none.
  static double secondsAfterLoss(const std::string& errors, const std::string& restart) {
    const std::string before = " is done ";
    const size_t line = errors.find(restart);
    const size_t at = line == std::string::npos ? line : errors.find(before, line);
    return at == std::string::npos ? -1 : std::stod(errors.substr(at + before.size()));
  }
  void expectNothingLeft() {
    EXPECT_TRUE(eventually([&] { return processesMentioning(folder_.path().string()).empty(); }, seconds(5)));
    EXPECT_FALSE(std::filesystem::exists(at("job.key")));
  }

  TemporaryFolder folder_;
  std::string plan_ = folder_.file("job.plan");
  std::string model_ = "examples/mlp.onnx";
  std::string microbatches_ = "4";
  std::string every_ = "50";
  Process run_;
};

// Enough steps that every loss comes before the end, on a machine with two processors.
constexpr int64_t kSteps = 1'200;

TEST_F(NodeRestarts, ALostWorkerAndALostNodeLeaveTheWeightsAsTheyWouldBe) {
  model_ = "examples/gpt2.onnx";
  plan({"--cluster", "2x1", "--stages", "uniform:2"});
  const CommandResult whole = runPipeshard(
      {"run", plan_, "--steps", std::to_string(kSteps), "--checkpoint", at("whole"), "--every", "1h"});
  ASSERT_EQ(whole.exit_code, 0) << whole.errors;
  startRun(kSteps);
  const Process first = startNode("node0", {"--index", "0"});
  const Process second = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(comes(run_, "checkpoint: ")) << errorsOf(run_) << errorsOf(first);
  const pid_t stays = workerOf(0);
  killWorker(plan_, 1);
  ASSERT_TRUE(comes(run_, "restart 1 of 5: worker of rank 1")) << errorsOf(run_);
  ASSERT_TRUE(comes(run_, "s after the loss"));
  EXPECT_EQ(workerOf(0), stays);
  const Process spare = startNode("node2");
  ASSERT_TRUE(comes(run_, "node 2 joined"));
  ::kill(second.pid, SIGKILL);
  ASSERT_TRUE(comes(run_, "restart 2 of 5: node 1 (host ")) << errorsOf(run_);
  const auto hasGoneOnTwice = [&] {
    const std::string errors = errorsOf(run_), stayed = "; 1 of 2 worker processes stayed";
    return errors.find(stayed, errors.find(stayed) + 1) != std::string::npos;
  };
  EXPECT_TRUE(eventually(hasGoneOnTwice, seconds(20))) << errorsOf(run_);
  EXPECT_EQ(workerOf(0), stays);
  const CommandResult ended = finish(run_, seconds(200));  // 1,200 steps beside other work
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("; going on on node 0 (host "));
  EXPECT_THAT(ended.errors, HasSubstr(", node 2 (host "));
  // From when the node was heard of last, not from when it was given up: that is 4 s later.
  EXPECT_GE(secondsAfterLoss(ended.errors, "restart 2 of 5 (node 1 "), 4.0);
  EXPECT_THAT(ended.errors, Not(HasSubstr("with the plan for 1 device,")));
  finish(second);
  for (const Process& node : {first, spare}) {
    const CommandResult left = finish(node, seconds(10));
    EXPECT_EQ(left.exit_code, 0) << left.errors;
    EXPECT_THAT(left.errors, HasSubstr("the job is done"));
  }
  const CommandResult compared = runPipeshard({"checkpoint", at("whole"), "--compare", at("saved")});
  EXPECT_EQ(compared.exit_code, 0) << compared.output;
  expectNothingLeft();
}

TEST_F(NodeRestarts, FewerDevicesGoOnWithAPlanOfTheirOwnAndACameBackNodeIsUsedNext) {
  plan({"--cluster", "3x1", "--stages", "uniform:3"});
  startRun(100'000'000);
  const Process first = startNode("node0", {"--index", "0"});
  const Process second = startNode("node1", {"--index", "1"});
  const Process third = startNode("node2", {"--index", "2"});
  ASSERT_TRUE(comes(run_, "checkpoint: ")) << errorsOf(run_);
  EXPECT_THAT(readFile(at("run.out")), HasSubstr("should devices be lost: plans for 2, 1 are ready"));
  ::kill(third.pid, SIGKILL);
  finish(third);
  ASSERT_TRUE(comes(run_, "with the plan for 2 devices, " + plan_ + "/fewer/2")) << errorsOf(run_);
  ASSERT_TRUE(comes(run_, "s after the loss"));
  const Process back = startNode("back", {"--index", "2"});
  ASSERT_TRUE(comes(run_, "node 2 joined: host ", seconds(10)));
  ASSERT_TRUE(comes(back, "joined the coordinator"));
  killWorker(plan_ + "/fewer/2", 0);
  ASSERT_TRUE(comes(back, "started rank 2")) << errorsOf(run_) << errorsOf(back);
  // Before the step that follows the restart there would be nothing to save: the node ends with 143.
  ASSERT_TRUE(comes(run_, "restart 2 of 5 (worker of rank 0 ")) << errorsOf(run_);
  // One node that is asked to end is saved for, and left out.
  ::kill(second.pid, SIGTERM);
  EXPECT_EQ(finish(second, seconds(10)).exit_code, 75);
  ASSERT_TRUE(comes(run_, "was asked to end; going on on node 0")) << errorsOf(run_);
  ASSERT_TRUE(comes(run_, "step ", seconds(5)));
  std::this_thread::sleep_for(seconds(2));
  ::kill(run_.pid, SIGTERM);
  const CommandResult ended = finish(run_, seconds(20));
  EXPECT_EQ(ended.exit_code, 75) << ended.errors;
  EXPECT_THAT(ended.errors, Not(HasSubstr("dropped")));  // no stranger was there
  EXPECT_THAT(ended.errors, Not(HasSubstr("refused")));
  EXPECT_EQ(finish(first, seconds(10)).exit_code, 75);
  EXPECT_EQ(finish(back, seconds(10)).exit_code, 75);
  expectNothingLeft();
}

// Held-out data are evaluated by whatever plan goes on; the loss is the same function of the step.
TEST_F(NodeRestarts, FewerDevicesEvaluateAsMoreDo) {
  writeFile(at("held.jsonl"), heldOut());
  plan({"--cluster", "2x1", "--stages", "uniform:2", "--precision", "float64", "--dim", "batch=8"});
  const std::vector<std::string> evaluation = {"--eval", at("held.jsonl"), "--eval-every", "100"};
  std::vector<std::string> whole = {"run", plan_, "--steps", "600", "--log", at("whole"), "--threads", "1"};
  whole.insert(whole.end(), evaluation.begin(), evaluation.end());
  ASSERT_EQ(runPipeshard(whole).exit_code, 0);
  std::vector<std::string> more = {"--log", at("log")};
  more.insert(more.end(), evaluation.begin(), evaluation.end());
  startRun(600, more);
  const Process first = startNode("node0", {"--index", "0"});
  const Process second = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(comes(run_, "checkpoint: ")) << errorsOf(run_);
  ::kill(second.pid, SIGKILL);
  finish(second);
  const CommandResult ended = finish(run_);
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("with the plan for 1 device,"));
  const std::vector<double> want = lossesIn(at("whole") + "/evaluations.jsonl");
  const std::vector<double> got = lossesIn(at("log") + "/evaluations.jsonl");
  EXPECT_EQ(want.size(), 6u);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-9 * want[i]);
  finish(first, seconds(10));
  expectNothingLeft();
}

// As a scheduler does that ends a job: every process is signalled.
TEST_F(NodeRestarts, ASignalToAllIsOneRequestToSaveAndEnd) {
  plan({"--cluster", "2x1", "--stages", "uniform:2"});
  every_ = "1h";
  startRun(100'000'000);
  const Process first = startNode("node0", {"--index", "0"});
  const Process second = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(comes(run_, "step ")) << errorsOf(run_);
  for (const Process& process : {first, second, run_}) ::kill(process.pid, SIGTERM);
  const CommandResult ended = finish(run_, seconds(20));
  EXPECT_EQ(ended.exit_code, 75) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("the same command goes on from it"));
  EXPECT_EQ(finish(first, seconds(10)).exit_code, 75);
  EXPECT_EQ(finish(second, seconds(10)).exit_code, 75);
  expectNothingLeft();
}

TEST_F(NodeRestarts, WhereTooFewAreLeftItWaitsForANodeAndSaysForWhich) {
  microbatches_ = "1";
  plan({"--cluster", "2x1", "--stages", "uniform:2", "--schedule", "pipedream"});
  startRun(100'000'000);
  const Process first = startNode("node0", {"--index", "0"});
  const Process second = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(comes(run_, "checkpoint: ")) << errorsOf(run_);
  EXPECT_THAT(errorsOf(run_), HasSubstr("there is no plan for 1 device: what the schedule"));
  ::kill(second.pid, SIGKILL);
  finish(second);
  ASSERT_TRUE(comes(run_, "have 1 device, too few for the plan's 2; waiting 20 s")) << errorsOf(run_);
  const Process back = startNode("back");
  ASSERT_TRUE(comes(run_, "restart 1 of 5: node 1")) << errorsOf(run_);
  ASSERT_TRUE(comes(run_, "s after the loss"));
  ::kill(run_.pid, SIGTERM);
  EXPECT_EQ(finish(run_, seconds(20)).exit_code, 75);
  finish(first, seconds(10));
  finish(back, seconds(10));
  expectNothingLeft();
}

// A daemon that was cut off comes back by itself, where it was asked to.
TEST_F(NodeRestarts, AStoppedDaemonRejoinsAndItsOldWorkersAreNotHeard) {
  plan({"--cluster", "2x1", "--stages", "uniform:2"});
  startRun(100'000'000);
  const Process first = startNode("node0", {"--index", "0", "--rejoin"});
  const Process second = startNode("node1", {"--index", "1", "--rejoin"});
  ASSERT_TRUE(comes(run_, "checkpoint: ")) << errorsOf(run_);
  ::kill(second.pid, SIGSTOP);
  ASSERT_TRUE(comes(run_, "has not answered for 4 s", seconds(15))) << errorsOf(run_);
  ASSERT_TRUE(comes(run_, "with the plan for 1 device,")) << errorsOf(run_);
  ::kill(second.pid, SIGCONT);
  ASSERT_TRUE(comes(second, "joining again", seconds(15))) << errorsOf(second);
  EXPECT_TRUE(eventually([&] { return workerOf(1) < 0; }, seconds(5)));
  ASSERT_TRUE(comes(run_, "s after the loss"));
  const auto hasJoinedTwice = [&] {
    const std::string errors = errorsOf(run_), joined = "node 1 joined";
    return errors.find(joined, errors.find(joined) + 1) != std::string::npos;
  };
  ASSERT_TRUE(eventually(hasJoinedTwice, seconds(15))) << errorsOf(run_);
  killWorker(plan_ + "/fewer/1", 0);
  ASSERT_TRUE(comes(run_, "restart 2 of 5")) << errorsOf(run_);
  EXPECT_TRUE(eventually([&] { return workerOf(1) > 0; }, seconds(10))) << errorsOf(run_);
  ::kill(run_.pid, SIGTERM);
  finish(run_, seconds(20));
  finish(first, seconds(10));
  finish(second, seconds(10));
  expectNothingLeft();
}

}  // namespace
}  // namespace pipeshard
