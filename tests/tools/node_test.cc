// Jobs on nodes, as a user starts them: a coordinator that listens and a daemon for each node, all on this
// machine. What happens to the link between real hosts is tested in tests/cluster.

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "tests/job_on_nodes.h"

namespace pipeshard {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class Nodes : public JobOnNodes {
 protected:
  void plan(const std::string& model = "examples/mlp.onnx") {
    const CommandResult planned = runPipeshard(
        {"plan", model, "--cluster", "2x2", "--stages", "uniform:4", "--microbatches", "4", "-o", plan_});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  CommandProcess startRun(const std::vector<std::string>& more = {"--steps", "10000000"}) {
    std::vector<std::string> arguments{"run", plan_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return startListening("run", arguments);
  }
  // Where a coordinator that chose its own port tells the nodes to join; empty if it has not said so in time.
  static std::string addressToldBy(const CommandProcess& coordinator) {
    std::string address;
    eventually(
        [&] {
          const std::string said = coordinator.errors();
          const size_t at = said.find("tcp://");
          const size_t end = at == std::string::npos ? at : said.find_first_of(" \n", at);
          if (end != std::string::npos) address = said.substr(at, end - at);
          return !address.empty();
        },
        kPatience);
    return address;
  }
  // A job on two nodes, in the middle of its steps.
  void startJob() {
    plan();
    run_ = startRun();
    first_ = startNode("node0", {"--index", "0"});
    second_ = startNode("node1", {"--index", "1"});
    ASSERT_TRUE(run_.comes("step ")) << run_.errors() << first_.errors() << second_.errors();
  }

  CommandProcess run_, first_, second_;
};

TEST_F(Nodes, ValidatePassesOnTwoNodesWithKeys) {
  for (const char* model : {"examples/mlp.onnx", "examples/gpt2.onnx"}) {
    const CommandProcess validate =
        startListening("validate", {"validate", model, "--cluster", "2x2", "--stages", "uniform:4",
                                    "--schedule", "1f1b", "--microbatches", "8", "--steps", "2"});
    const CommandProcess first = startNode("node0");
    const CommandProcess second = startNode("node1");
    const CommandResult result = validate.finish();
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.output, HasSubstr("PASS"));
    for (const CommandProcess& node : {first, second}) {
      const CommandResult ended = node.finish();
      EXPECT_EQ(ended.exit_code, 0) << ended.errors;
      EXPECT_THAT(ended.errors, HasSubstr("the job is done"));
    }
    EXPECT_FALSE(std::filesystem::exists(key_));
  }
}

// Both daemons share this machine's clock: what alignment measures is 0, within half a round trip.
TEST_F(Nodes, ATraceHasTheRanksOfAllNodesOnOneClock) {
  plan();
  const std::string file = folder_.file("trace.json");
  run_ = startRun({"--steps", "30", "--trace", file, "--trace-steps", "5"});
  first_ = startNode("node0", {"--index", "0"});
  second_ = startNode("node1", {"--index", "1"});
  const CommandResult result = run_.finish();
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("rank 3 (stage 3)"));
  std::map<int64_t, double> sent, received;
  std::set<std::pair<int, int>> steps;
  const nlohmann::json trace = nlohmann::json::parse(readFile(file));
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    if (phase == "s") sent[event.at("id")] = event.at("ts");
    if (phase == "f") received[event.at("id")] = event.at("ts");
    if (phase == "X" && event.at("args").contains("step"))
      steps.emplace(event.at("pid"), event.at("args").at("step"));
  }
  EXPECT_EQ(steps.size(), 20u);  // the last 5 of 4 ranks
  EXPECT_TRUE(steps.contains({3, 30}));
  EXPECT_GE(received.size(), 5u * 6 * 4);
  for (const auto& [message, time] : received) {
    ASSERT_TRUE(sent.contains(message));
    EXPECT_GT(time - sent[message], -5000.0) << "microseconds";
  }
  EXPECT_EQ(first_.finish().exit_code, 0);
  EXPECT_EQ(second_.finish().exit_code, 0);
  expectNothingLeft();
}

int parentOf(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("PPid:")) return std::stoi(line.substr(5));
  }
  return -1;
}

TEST_F(Nodes, ARunPutsItsWorkersOnTheUnequalNodesOfItsCluster) {
  const std::string file = folder_.file("lab.json");
  writeFile(
      file,
      R"({"version": 1, "kinds": {"worker": {}}, "nodes": [{"kind": "worker"}, {"kind": "worker", "devices": 3}]})");
  const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", file, "--stages",
                                              "uniform:4", "--microbatches", "4", "-o", plan_});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  run_ = startRun();
  first_ = startNode("node0", {"--index", "0"});
  second_ = startNode("node1", {"--index", "1"});
  ASSERT_TRUE(run_.comes("step "));
  EXPECT_EQ(parentOf(workerOf(0)), first_.pid());
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(parentOf(workerOf(rank)), second_.pid()) << rank;
  ::kill(run_.pid(), SIGTERM);
  run_.finish();
  first_.finish();
  second_.finish();
  expectNothingLeft();
}

TEST_F(Nodes, ValidatePassesWithDataParallelDevicesAcrossNodes) {
  const CommandProcess validate = startListening(
      "validate", {"validate", "examples/gpt2.onnx", "--cluster", "2x2", "--stages", "uniform:2",
                   "--stage-devices", "1,3", "--microbatches", "2", "--steps", "2"});
  const CommandProcess first = startNode("node0");
  const CommandProcess second = startNode("node1");
  const CommandResult result = validate.finish();
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(result.output, HasSubstr("PASS"));
  first.finish();
  second.finish();
}

TEST_F(Nodes, TheKeyFileIsForItsOwnerOnly) {
  plan();
  run_ = startRun();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(key_); }, kPatience));
  struct stat status {};
  ASSERT_EQ(stat(key_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  kill(run_.pid(), SIGTERM);
  EXPECT_EQ(run_.finish().exit_code, 128 + SIGTERM);
  expectNothingLeft();
}

TEST_F(Nodes, AKilledWorkerEndsTheJobWithItsNameAndHost) {
  startJob();
  const pid_t victim = workerOf(2);
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const CommandResult result = finishWithin(5, run_);
  EXPECT_EQ(result.exit_code, 69);
  EXPECT_THAT(result.errors, HasSubstr("rank 2 (host "));
  EXPECT_THAT(result.errors, HasSubstr("pid " + std::to_string(victim) + ") was killed by signal 9"));
  EXPECT_EQ(first_.finish().exit_code, 69);
  EXPECT_EQ(second_.finish().exit_code, 69);
  expectNothingLeft();
}

TEST_F(Nodes, AStoppedWorkerEndsTheJobWithinTenSeconds) {
  startJob();
  const pid_t victim = workerOf(1);
  ASSERT_GT(victim, 0);
  kill(victim, SIGSTOP);
  const CommandResult result = finishWithin(10, run_);
  EXPECT_EQ(result.exit_code, 69);
  EXPECT_THAT(result.errors, HasSubstr("pid " + std::to_string(victim) + ") has not answered"));
  EXPECT_THAT(result.errors, HasSubstr("it is stopped, as by SIGSTOP"));  // its daemon says so
  first_.finish();
  second_.finish();
  expectNothingLeft();
}

TEST_F(Nodes, AKilledDaemonIsNamedAndItsWorkersEndWithIt) {
  startJob();
  kill(second_.pid(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return workerOf(2) < 0 && workerOf(3) < 0; }, seconds(5) + kSlack));
  const CommandResult result = finishWithin(15, run_);
  EXPECT_EQ(result.exit_code, 69);
  EXPECT_THAT(result.errors, HasSubstr("node 1 (host "));
  EXPECT_THAT(result.errors,
              HasSubstr("pid " + std::to_string(second_.pid()) + ") with ranks 2, 3 has not answered"));
  EXPECT_EQ(first_.finish().exit_code, 69);
  second_.finish();
  expectNothingLeft();
}

TEST_F(Nodes, AStoppedDaemonLeavesNoWorkerToGoOn) {
  startJob();
  kill(second_.pid(), SIGSTOP);
  const CommandResult result = finishWithin(15, run_);
  EXPECT_EQ(result.exit_code, 69);
  EXPECT_THAT(result.errors, HasSubstr("node 1 (host "));
  // The workers were told by the coordinator itself.
  EXPECT_TRUE(eventually([&] { return workerOf(2) < 0 && workerOf(3) < 0; }, seconds(5) + kSlack));
  kill(second_.pid(), SIGCONT);
  EXPECT_EQ(second_.finish().exit_code, 69);
  first_.finish();
  expectNothingLeft();
}

TEST_F(Nodes, AKilledCoordinatorLeavesNoWorkerBehind) {
  startJob();
  kill(run_.pid(), SIGKILL);
  EXPECT_TRUE(eventually([&] { return processesMentioning(plan_).empty(); }, seconds(5) + kSlack));
  for (const CommandProcess& node : {first_, second_}) {
    const CommandResult ended = node.finish();
    EXPECT_EQ(ended.exit_code, 69);
    EXPECT_THAT(ended.errors, HasSubstr("the coordinator at tcp://127.0.0.1:"));
  }
  run_.finish();
}

// A node knows the patience of its job as soon as it has joined: here the other one has not come yet.
TEST_F(Nodes, AJobIsWaitedForFromTheBeginning) {
  plan();
  run_ = startRun({"--steps", "5", "--patience", "20"});
  first_ = startNode("node0");
  ASSERT_TRUE(run_.comes("node 0 joined"));
  ASSERT_TRUE(first_.comes("joined the coordinator"));
  std::this_thread::sleep_for(seconds(1));  // what was said last is on its way
  kill(run_.pid(), SIGSTOP);
  std::this_thread::sleep_for(seconds(6));  // longer than others are waited for
  kill(run_.pid(), SIGCONT);
  second_ = startNode("node1");
  EXPECT_EQ(run_.finish().exit_code, 0) << run_.errors() << first_.errors();
  EXPECT_EQ(first_.finish().exit_code, 0);
  EXPECT_EQ(second_.finish().exit_code, 0);
}

TEST_F(Nodes, AnInterruptedDaemonSaysSoAndEndsTheJob) {
  startJob();
  kill(first_.pid(), SIGTERM);
  const CommandResult result = finishWithin(5, run_);
  EXPECT_EQ(result.exit_code, 69);
  EXPECT_THAT(result.errors, HasSubstr("has left: stopped by SIGTERM"));
  EXPECT_EQ(first_.finish().exit_code, 128 + SIGTERM);
  second_.finish();
  expectNothingLeft();
}

TEST_F(Nodes, MissingNodesAreListed) {
  plan();
  run_ = startRun({"--steps", "5", "--node-timeout", "15"});
  const CommandProcess node = startNode("node0", {"--index", "0"});
  const CommandResult result = run_.finish();
  EXPECT_EQ(result.exit_code, 69);
  EXPECT_THAT(result.errors, HasSubstr("missing: node 1; joined: node 0 on"));
  EXPECT_THAT(result.errors, HasSubstr("pipeshard node --join tcp://127.0.0.1:"));
  EXPECT_EQ(node.finish().exit_code, 69);
}

TEST_F(Nodes, TwoNodesOfOneIndexAreRefused) {
  plan();
  run_ = startRun();
  const CommandProcess node = startNode("node0", {"--index", "0"});
  ASSERT_TRUE(run_.comes("joined"));
  const CommandResult other = startNode("other", {"--index", "0"}).finish();
  EXPECT_EQ(other.exit_code, 78);
  EXPECT_THAT(other.errors, HasSubstr("node 0 has joined already"));
  const CommandResult beyond = startNode("beyond", {"--index", "7"}).finish();
  EXPECT_EQ(beyond.exit_code, 78);
  EXPECT_THAT(beyond.errors, HasSubstr("the plan's cluster has 2 nodes"));
  kill(run_.pid(), SIGTERM);
  EXPECT_EQ(run_.finish().exit_code, 128 + SIGTERM);
  node.finish();
}

TEST_F(Nodes, TheKeyOfAnotherJobIsRefused) {
  plan();
  run_ = startRun();
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(key_); }, kPatience));
  const std::string address = addressToldBy(run_);
  ASSERT_NE(address, "");
  key_ = folder_.file("other.key");
  const CommandProcess other =
      start("other_run", {"run", plan_, "--listen", "tcp://127.0.0.1:*", "--key-file", key_});
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(key_); }, kPatience));
  const CommandProcess stranger = startNode("stranger", {"--join", address});
  const CommandResult refused = stranger.finish();
  EXPECT_EQ(refused.exit_code, 77) << refused.errors;
  kill(other.pid(), SIGTERM);
  kill(run_.pid(), SIGTERM);
  other.finish();
  run_.finish();
}

// Its copy of the key file is replaced by hand, later than the coordinator.
TEST_F(Nodes, ANodeThatRejoinsWaitsForTheKeysOfTheNextCoordinator) {
  plan();
  run_ = startRun();
  const std::string address = addressToldBy(run_);
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(key_); }, kPatience));
  const std::string copy = folder_.file("copy.key");
  std::filesystem::copy_file(key_, copy);
  const CommandProcess node = start("node", {"node", "--key-file", copy, "--wait", "60", "--rejoin"});
  ASSERT_TRUE(run_.comes("joined")) << node.errors();
  kill(run_.pid(), SIGKILL);
  run_.finish();
  ASSERT_TRUE(node.comes("waiting for a coordinator")) << node.errors();
  run_ = start("run2", {"run", plan_, "--listen", address, "--key-file", key_, "--node-timeout", "60"});
  EXPECT_TRUE(node.comes("waiting for a key file " + copy + " that has changed")) << node.errors();
  const std::string half = folder_.file("half.key");
  std::filesystem::copy_file(key_, half);
  std::filesystem::rename(half, copy);
  EXPECT_TRUE(run_.comes("joined")) << run_.errors() << node.errors();
  EXPECT_TRUE(node.comes("joined the coordinator", 2)) << node.errors();
  kill(run_.pid(), SIGTERM);
  run_.finish();
  node.finish();
}

TEST_F(Nodes, AnAddressForAllNeedsKeys) {
  plan();
  const CommandResult result = runPipeshard({"run", plan_, "--listen", "tcp://0.0.0.0:*"});
  EXPECT_EQ(result.exit_code, 78);
  EXPECT_THAT(result.errors, HasSubstr("without keys"));
}

TEST_F(Nodes, JoiningAnotherMachineNeedsKeys) {
  const CommandResult result = runPipeshard({"node", "--join", "tcp://192.0.2.1:7000", "--wait", "1"});
  EXPECT_EQ(result.exit_code, 78);
  EXPECT_THAT(result.errors, HasSubstr("--key-file FILE"));
  const CommandResult insecure =
      runPipeshard({"node", "--join", "tcp://192.0.2.1:7000", "--wait", "1", "--insecure"});
  EXPECT_EQ(insecure.exit_code, 69) << insecure.errors;
}

// Options behind the command are the command's.
TEST_F(Nodes, WithoutALauncherTheKeyFileStandsBeforeTheCommand) {
  const CommandResult result = runPipeshard({"node", "run", "job.plan", "--steps", "3", "--key-file", key_});
  EXPECT_EQ(result.exit_code, 64);
  EXPECT_THAT(result.errors, HasSubstr("no launcher (srun, mpirun, torchrun, ...) was recognised"));
  EXPECT_THAT(result.errors, HasSubstr("give --key-file FILE before `run`"));
}

// Both daemons are on this machine: the second takes the next port.
TEST_F(Nodes, TensorsTakeThePortsThatAFirewallLeavesOpen) {
  plan();
  const int first = 20000 + ::getpid() % 10000, last = first + 99;
  const std::string ports = std::to_string(first) + "-" + std::to_string(last);
  run_ = startRun();
  first_ = startNode("node0", {"--index", "0", "--data-ports", ports});
  second_ = startNode("node1", {"--index", "1", "--data-ports", ports});
  ASSERT_TRUE(run_.comes("step ")) << run_.errors() << first_.errors() << second_.errors();
  int listening = 0;
  std::ifstream sockets("/proc/net/tcp");
  for (std::string line; std::getline(sockets, line);) {
    unsigned address = 0, port = 0, peer = 0, peer_port = 0, state = 0;
    if (std::sscanf(line.c_str(), " %*d: %x:%x %x:%x %x", &address, &port, &peer, &peer_port, &state) != 5)
      continue;
    if (state == 10 && static_cast<int>(port) >= first && static_cast<int>(port) <= last) ++listening;
  }
  EXPECT_GE(listening, 2);
  ::kill(run_.pid(), SIGTERM);
  run_.finish();
  first_.finish();
  second_.finish();
  expectNothingLeft();
}

TEST_F(Nodes, PortsThatAreNoneAndPortsOfAPlaneWithoutThemAreRefused) {
  for (const char* ports : {"0-5", "29699-29600", "1-70000", "a", "5-"}) {
    const CommandResult refused =
        runPipeshard({"node", "--join", "tcp://127.0.0.1:1", "--data-ports", ports});
    EXPECT_EQ(refused.exit_code, 64) << ports << refused.errors;
    EXPECT_THAT(refused.errors, HasSubstr("expected ports from 1 to 65535"));
  }
  plan();
  run_ = startRun({"--steps", "10", "--data-plane", "private"});
  first_ = startNode("node0", {"--index", "0", "--data-ports", "29600-29699"});
  second_ = startNode("node1", {"--index", "1"});
  const CommandResult result = run_.finish();
  EXPECT_EQ(result.exit_code, 78) << result.errors;
  EXPECT_THAT(result.errors, HasSubstr("--data-ports: with --data-plane private"));
  first_.finish();
  second_.finish();
}

TEST_F(Nodes, WhatEncryptionLeavesOfAFastLinkIsSaid) {
  const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "g4dn.12xlarge:2",
                                              "--stages", "uniform:2", "--microbatches", "2", "-o", plan_});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  for (const bool encrypted : {true, false}) {
    const CommandResult result =
        runPipeshard({"run", plan_, "--listen", "tcp://127.0.0.1:*", "--node-timeout", "1", "--data-plane",
                      encrypted ? "curve" : "private"});
    EXPECT_EQ(result.exit_code, 69) << result.errors;
    EXPECT_EQ(result.errors.find("where the plan counts on ") != std::string::npos, encrypted)
        << result.errors;
  }
}

// Whatever carries them, and with keys or without them on loopback.
TEST_F(Nodes, BothDataPlanesGiveTheSameBits) {
  std::map<std::string, std::string> first_bits;
  for (const std::string plane : {"curve", "private"}) {
    const std::string dump = folder_.file("dump-" + plane);
    const CommandProcess validate = start(
        "validate-" + plane, {"validate", "examples/gpt2.onnx", "--cluster", "2x2", "--stages", "uniform:2",
                              "--stage-devices", "1,3", "--microbatches", "2", "--steps", "2", "--listen",
                              "tcp://127.0.0.1:*", "--dump", dump, "--data-plane", plane});
    const std::string address = addressToldBy(validate);
    std::vector<CommandProcess> nodes;
    for (const std::string name : {"node0", "node1"})
      nodes.push_back(start(name, {"node", "--join", address, "--wait", "30"}));
    const CommandResult result = validate.finish();
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    for (const CommandProcess& node : nodes) {
      const CommandResult ended = node.finish();
      EXPECT_EQ(ended.exit_code, 0) << ended.errors;
    }
    std::map<std::string, std::string> bits;
    for (const auto& file : std::filesystem::recursive_directory_iterator(dump)) {
      if (file.path().extension() != ".safetensors") continue;
      bits[std::filesystem::relative(file.path(), dump)] = readFile(file.path());
    }
    EXPECT_FALSE(bits.empty());
    if (first_bits.empty()) first_bits = bits;
    EXPECT_TRUE(bits == first_bits) << "other bits than over the other one";
  }
}

TEST_F(Nodes, APlanDirectoryThatANodeLacksIsNamed) {
  plan();
  run_ = startRun();
  const CommandProcess node = startNode("node0");
  ASSERT_TRUE(run_.comes("joined"));
  std::filesystem::rename(plan_, plan_ + ".elsewhere");
  const CommandProcess second = startNode("node1");
  const CommandResult result = run_.finish();
  EXPECT_EQ(result.exit_code, 66);
  EXPECT_THAT(result.errors, HasSubstr("is not on this host"));
  node.finish();
  second.finish();
}

}  // namespace
}  // namespace pipeshard
