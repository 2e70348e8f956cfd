// `run --restarts` on nodes: daemons and workers are killed, come back, and are asked to end.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/job_on_nodes.h"

namespace pipeshard {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class NodeRestarts : public JobOnNodes {
 protected:
  void plan(const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"plan",           model_,        "--optimizer", "adamw:lr=1e-3",
                                          "--microbatches", microbatches_, "-o",          plan_};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const CommandResult planned = runPipeshard(arguments);
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  void startRun(int64_t steps, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{"run",          plan_,       "--steps", std::to_string(steps),
                                       "--checkpoint", at("saved"), "--every", every_,
                                       "--restarts",   "5"};
    // Each node takes all processors of this machine else.
    arguments.insert(arguments.end(), {"--threads", "1"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    run_ = startListening("run", arguments);
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

  std::string model_ = "examples/mlp.onnx";
  std::string microbatches_ = "4";
  std::string every_ = "50";
  CommandProcess run_;
};

// Enough steps that every loss comes before the end, on a machine with two processors.
constexpr int64_t kSteps = 800;
constexpr seconds kAllSteps(200);  // beside other work

TEST_F(NodeRestarts, ALostWorkerAndALostNodeLeaveTheWeightsAsTheyWouldBe) {
  model_ = "examples/gpt2.onnx";
  plan({"--cluster", "2x1", "--stages", "uniform:2"});
  const CommandResult whole = runPipeshard(
      {"run", plan_, "--steps", std::to_string(kSteps), "--checkpoint", at("whole"), "--every", "1h"},
      kAllSteps);
  ASSERT_EQ(whole.exit_code, 0) << whole.errors;
  startRun(kSteps);
  const CommandProcess first = startNode("node0", {"--index", "0"});
  const CommandProcess second = startNode("node1", {"--index", "1"});
  const CommandProcess spare = startNode("node2", {"--index", "2"});
  ASSERT_TRUE(run_.comes("node 2 joined")) << run_.errors() << spare.errors();
  ASSERT_TRUE(run_.comes("checkpoint: ")) << run_.errors() << first.errors();
  const pid_t stays = workerOf(0);
  killWorker(plan_, 1);
  ASSERT_TRUE(run_.comes("restart 1 of 5: worker of rank 1")) << run_.errors();
  ASSERT_TRUE(run_.comes("s after the loss"));
  EXPECT_EQ(workerOf(0), stays);
  ::kill(second.pid(), SIGKILL);
  ASSERT_TRUE(run_.comes("restart 2 of 5: node 1 (host ")) << run_.errors();
  EXPECT_TRUE(run_.comes("; 1 of 2 worker processes stayed", 2)) << run_.errors();
  EXPECT_EQ(workerOf(0), stays);
  const CommandResult ended = run_.finish(kAllSteps);
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("; going on on node 0 (host "));
  EXPECT_THAT(ended.errors, HasSubstr(", node 2 (host "));
  // From when the node was heard of last, not from when it was given up: that is 4 s later.
  EXPECT_GE(secondsAfterLoss(ended.errors, "restart 2 of 5 (node 1 "), 4.0);
  EXPECT_THAT(ended.errors, Not(HasSubstr("with the plan for 1 device,")));
  second.finish();
  for (const CommandProcess& node : {first, spare}) {
    const CommandResult left = node.finish();
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
  const CommandProcess first = startNode("node0", {"--index", "0"});
  const CommandProcess second = startNode("node1", {"--index", "1"});
  const CommandProcess third = startNode("node2", {"--index", "2"});
  ASSERT_TRUE(run_.comes("checkpoint: ")) << run_.errors();
  EXPECT_THAT(run_.output(), HasSubstr("should devices be lost: plans for 2, 1 are ready"));
  ::kill(third.pid(), SIGKILL);
  third.finish();
  ASSERT_TRUE(run_.comes("with the plan for 2 devices, " + plan_ + "/fewer/2")) << run_.errors();
  ASSERT_TRUE(run_.comes("s after the loss"));
  const CommandProcess back = startNode("back", {"--index", "2"});
  ASSERT_TRUE(run_.comes("node 2 joined: host ", 2)) << run_.errors();
  ASSERT_TRUE(back.comes("joined the coordinator"));
  killWorker(plan_ + "/fewer/2", 0);
  ASSERT_TRUE(back.comes("started rank 2")) << run_.errors() << back.errors();
  // Before the step that follows the restart there would be nothing to save: the node ends with 143.
  ASSERT_TRUE(run_.comes("restart 2 of 5 (worker of rank 0 ")) << run_.errors();
  // One node that is asked to end is saved for, and left out.
  ::kill(second.pid(), SIGTERM);
  EXPECT_EQ(second.finish().exit_code, 75);
  ASSERT_TRUE(run_.comes("was asked to end; going on on node 0")) << run_.errors();
  ASSERT_TRUE(run_.comes("restart 3 of 5 (node 1 ")) << run_.errors();
  ::kill(run_.pid(), SIGTERM);
  const CommandResult ended = run_.finish();
  EXPECT_EQ(ended.exit_code, 75) << ended.errors;
  EXPECT_THAT(ended.errors, Not(HasSubstr("dropped")));  // no stranger was there
  EXPECT_THAT(ended.errors, Not(HasSubstr("refused")));
  EXPECT_EQ(first.finish().exit_code, 75);
  EXPECT_EQ(back.finish().exit_code, 75);
  expectNothingLeft();
}

// Held-out data are evaluated by whatever plan goes on; the loss is the same function of the step.
TEST_F(NodeRestarts, FewerDevicesEvaluateAsMoreDo) {
  writeFile(at("held.jsonl"), heldOut());
  plan({"--cluster", "2x1", "--stages", "uniform:2", "--precision", "float64", "--dim", "batch=8"});
  const std::vector<std::string> evaluation = {"--eval", at("held.jsonl"), "--eval-every", "100"};
  const std::string steps = "2000";  // of which nearly all are left when the node is lost
  std::vector<std::string> whole = {"run", plan_, "--steps", steps, "--log", at("whole"), "--threads", "1"};
  whole.insert(whole.end(), evaluation.begin(), evaluation.end());
  ASSERT_EQ(runPipeshard(whole, kAllSteps).exit_code, 0);
  std::vector<std::string> more = {"--log", at("log")};
  more.insert(more.end(), evaluation.begin(), evaluation.end());
  startRun(std::stoll(steps), more);
  const CommandProcess first = startNode("node0", {"--index", "0"});
  const CommandProcess second = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(run_.comes("checkpoint: ")) << run_.errors();
  ::kill(second.pid(), SIGKILL);
  second.finish();
  const CommandResult ended = run_.finish(kAllSteps);
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("with the plan for 1 device,"));
  const std::vector<double> want = lossesIn(at("whole") + "/evaluations.jsonl");
  const std::vector<double> got = lossesIn(at("log") + "/evaluations.jsonl");
  EXPECT_EQ(want.size(), 20u);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-9 * want[i]);
  first.finish();
  expectNothingLeft();
}

// As a scheduler does that ends a job: every process is signalled.
TEST_F(NodeRestarts, ASignalToAllIsOneRequestToSaveAndEnd) {
  plan({"--cluster", "2x1", "--stages", "uniform:2"});
  every_ = "1h";
  startRun(100'000'000);
  const CommandProcess first = startNode("node0", {"--index", "0"});
  const CommandProcess second = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(run_.comes("step ")) << run_.errors();
  for (const CommandProcess& process : {first, second, run_}) ::kill(process.pid(), SIGTERM);
  const CommandResult ended = run_.finish();
  EXPECT_EQ(ended.exit_code, 75) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("the same command goes on from it"));
  EXPECT_EQ(first.finish().exit_code, 75);
  EXPECT_EQ(second.finish().exit_code, 75);
  expectNothingLeft();
}

TEST_F(NodeRestarts, WhereTooFewAreLeftItWaitsForANodeAndSaysForWhich) {
  microbatches_ = "1";
  plan({"--cluster", "2x1", "--stages", "uniform:2", "--schedule", "pipedream"});
  startRun(100'000'000);
  const CommandProcess first = startNode("node0", {"--index", "0"});
  const CommandProcess second = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(run_.comes("checkpoint: ")) << run_.errors();
  EXPECT_THAT(run_.errors(), HasSubstr("there is no plan for 1 device: what the schedule"));
  ::kill(second.pid(), SIGKILL);
  second.finish();
  ASSERT_TRUE(run_.comes("have 1 device, too few for the plan's 2; waiting 60 s")) << run_.errors();
  const CommandProcess back = startNode("back");
  ASSERT_TRUE(run_.comes("restart 1 of 5: node 1")) << run_.errors();
  ASSERT_TRUE(run_.comes("s after the loss"));
  ::kill(run_.pid(), SIGTERM);
  EXPECT_EQ(run_.finish().exit_code, 75);
  first.finish();
  back.finish();
  expectNothingLeft();
}

// A port of this machine at which something else listens.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (::bind(socket_, any, size) == 0 && ::listen(socket_, 1) == 0 &&
        ::getsockname(socket_, any, &size) == 0)
      number_ = ntohs(address.sin_port);
  }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;
  ~TakenPort() { ::close(socket_); }

  int number() const { return number_; }  // 0: none could be taken

 private:
  int socket_, number_ = 0;
};

TEST_F(NodeRestarts, ASpareWhosePortsAreTakenIsLeftOut) {
  const TakenPort port;
  ASSERT_GT(port.number(), 0);
  const std::string ports = std::to_string(port.number()) + "-" + std::to_string(port.number());
  plan({"--cluster", "2x1", "--stages", "uniform:2"});
  startRun(100'000'000);
  const CommandProcess first = startNode("node0", {"--index", "0"});
  const CommandProcess second = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(run_.comes("checkpoint: ")) << run_.errors();
  const CommandProcess spare = startNode("spare", {"--index", "2", "--data-ports", ports});
  ASSERT_TRUE(run_.comes("node 2 joined")) << run_.errors();
  ::kill(second.pid(), SIGKILL);
  second.finish();
  ASSERT_TRUE(run_.comes("left out: node 2 (host ")) << run_.errors();
  ASSERT_TRUE(run_.comes("s after the loss")) << run_.errors();
  EXPECT_THAT(run_.errors(), HasSubstr("all ports from "));
  EXPECT_THAT(run_.errors(), HasSubstr("with the plan for 1 device,"));
  EXPECT_EQ(spare.finish().exit_code, 84);
  ::kill(run_.pid(), SIGTERM);
  EXPECT_EQ(run_.finish().exit_code, 75);
  EXPECT_EQ(first.finish().exit_code, 75);
  expectNothingLeft();
}

// A daemon that was cut off comes back by itself, where it was asked to.
TEST_F(NodeRestarts, AStoppedDaemonRejoinsAndItsOldWorkersAreNotHeard) {
  plan({"--cluster", "2x1", "--stages", "uniform:2"});
  startRun(100'000'000);
  const CommandProcess first = startNode("node0", {"--index", "0", "--rejoin"});
  const CommandProcess second = startNode("node1", {"--index", "1", "--rejoin"});
  ASSERT_TRUE(run_.comes("checkpoint: ")) << run_.errors();
  ::kill(second.pid(), SIGSTOP);
  ASSERT_TRUE(run_.comes("has not answered for 4 s")) << run_.errors();
  ASSERT_TRUE(run_.comes("with the plan for 1 device,")) << run_.errors();
  ::kill(second.pid(), SIGCONT);
  ASSERT_TRUE(second.comes("joining again")) << second.errors();
  EXPECT_TRUE(eventually([&] { return workerOf(1) < 0; }, seconds(5) + kSlack));
  ASSERT_TRUE(run_.comes("s after the loss"));
  ASSERT_TRUE(run_.comes("node 1 joined", 2)) << run_.errors();
  killWorker(plan_ + "/fewer/1", 0);
  ASSERT_TRUE(run_.comes("restart 2 of 5")) << run_.errors();
  EXPECT_TRUE(eventually([&] { return workerOf(1) > 0; }, kPatience)) << run_.errors();
  ::kill(run_.pid(), SIGTERM);
  run_.finish();
  first.finish();
  second.finish();
  expectNothingLeft();
}

}  // namespace
}  // namespace pipeshard
