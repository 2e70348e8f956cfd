// Jobs whose hosts have disks of their own, and something that others have not: a part of a checkpoint,
// another file. A host is a namespace of mounts and of names.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/job_on_nodes.h"

namespace pipeshard {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

class OwnDisks : public JobOnNodes {
 protected:
  void SetUp() override {
    fs::create_directories(saved_);
    for (const char* host : {"0", "1", "2"}) fs::create_directories(diskOf(host));
    const CommandProcess tried = on("0", "tried", {"--version"});
    if (tried.finish().exit_code == 126) GTEST_SKIP() << "namespaces of mounts are not allowed here";
  }

  std::string diskOf(const std::string& host) const { return at("disk" + host); }
  // What there is under `path` is what there is under `other`, for this process and its children.
  static void show(const std::string& other, const std::string& path) {
    if (::mount(other.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0) ::_exit(126);
  }
  // A command on this host. `in_process`: what else is other there.
  CommandProcess on(const std::string& host, const std::string& name,
                    const std::vector<std::string>& arguments,
                    const std::function<void()>& in_process = {}) const {
    const std::string names = "host" + host;
    return {folder_.path(), name, arguments, [&] {
              if (::unshare(CLONE_NEWNS | CLONE_NEWUTS) != 0 ||
                  ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
                  ::sethostname(names.c_str(), names.size()) != 0)
                ::_exit(126);
              if (!shares_) show(diskOf(host), saved_);
              if (in_process) in_process();
            }};
  }
  CommandProcess nodeOn(const std::string& host, const std::string& name,
                        const std::vector<std::string>& more = {},
                        const std::function<void()>& in_process = {}) const {
    std::vector<std::string> arguments{"node", "--key-file", key_, "--wait", wait_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return on(host, name, arguments, in_process);
  }
  // The coordinator, on host 0.
  CommandProcess runOn0(const std::string& steps, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments{
        "run",        plan_, "--steps",   steps, "--listen", "tcp://127.0.0.1:*",
        "--key-file", key_,  "--threads", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (std::ranges::find(arguments, "--node-timeout") == arguments.end())
      arguments.insert(arguments.end(), {"--node-timeout", wait_});
    return on("0", "run", arguments);
  }
  std::vector<std::string> saving(const std::string& every = "50") const {
    return {"--checkpoint", saved_, "--every", every, "--restarts", "5"};
  }
  void plan(const std::string& cluster, const std::string& stages, const std::string& directory) const {
    const CommandResult planned =
        runPipeshard({"plan", model_, "--cluster", cluster, "--stages", stages, "--optimizer",
                      "adamw:lr=1e-3", "--microbatches", "4", "-o", directory});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }

  std::string saved_ = at("saved");
  std::string model_ = "examples/mlp.onnx";
  bool shares_ = false;  // the folder of checkpoints
};

constexpr const char* kEndless = "100000000";
constexpr const char* kOnlyThere = "is in part on the own disk of host host1 alone (rank-0001.safetensors)";

// Neither a spare nor a plan for fewer devices has what only the lost one has.
TEST_F(OwnDisks, ANodeThatAloneHasAPartIsWaitedFor) {
  plan("2x1", "uniform:2", plan_);
  const CommandProcess run = runOn0(kEndless, saving());
  const CommandProcess first = nodeOn("0", "node0", {"--index", "0"});
  const CommandProcess second = nodeOn("1", "node1", {"--index", "1"});
  ASSERT_TRUE(run.comes("checkpoint: ")) << run.errors();
  EXPECT_THAT(run.output(), HasSubstr("the run waits for that host instead"));
  const CommandProcess spare = nodeOn("2", "spare");
  ASSERT_TRUE(run.comes("node 2 joined")) << run.errors();
  ::kill(second.pid(), SIGKILL);
  second.finish();
  ASSERT_TRUE(run.comes(kOnlyThere)) << run.errors();
  EXPECT_TRUE(run.comes("waiting 60 s for a node there: pipeshard node --join "));
  const CommandProcess back = nodeOn("1", "back");
  ASSERT_TRUE(run.comes("s after the loss")) << run.errors();
  EXPECT_THAT(run.errors(), HasSubstr("; going on on node 0 (host host0"));
  EXPECT_THAT(run.errors(), Not(HasSubstr("with the plan for")));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.finish().exit_code, 75) << run.errors();
  for (const CommandProcess& node : {first, spare, back}) EXPECT_EQ(node.finish().exit_code, 75);
  expectNothingLeft();
}

TEST_F(OwnDisks, ANodeThatDoesNotComeBackEndsTheJobWithWhatToDo) {
  plan("2x1", "uniform:2", plan_);
  std::vector<std::string> more = saving();
  more.insert(more.end(), {"--node-timeout", "15"});
  const CommandProcess run = runOn0(kEndless, more);
  const CommandProcess first = nodeOn("0", "node0", {"--index", "0"});
  const CommandProcess second = nodeOn("1", "node1", {"--index", "1"});
  ASSERT_TRUE(run.comes("checkpoint: ")) << run.errors();
  ::kill(second.pid(), SIGKILL);
  second.finish();
  const CommandResult ended = run.finish();
  EXPECT_EQ(ended.exit_code, 75) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("no node has come with it within 15 s"));
  EXPECT_THAT(ended.errors, HasSubstr("(rsync -a --ignore-existing host1:" + saved_));
  EXPECT_EQ(first.finish().exit_code, 75);
  // The same command, with both.
  const CommandProcess again = runOn0(kEndless, saving());
  nodeOn("0", "again0", {"--index", "0"});
  nodeOn("1", "again1", {"--index", "1"});
  EXPECT_TRUE(again.comes("going on after step ")) << again.errors();
  EXPECT_TRUE(again.comes("checkpoint: ")) << again.errors();
  ::kill(again.pid(), SIGTERM);
  EXPECT_EQ(again.finish().exit_code, 75);
}

TEST_F(OwnDisks, ANodeThatIsAskedToEndAndAloneHasAPartEndsTheJobSaved) {
  plan("2x1", "uniform:2", plan_);
  const CommandProcess run = runOn0(kEndless, saving());
  const CommandProcess first = nodeOn("0", "node0", {"--index", "0"});
  const CommandProcess second = nodeOn("1", "node1", {"--index", "1"});
  ASSERT_TRUE(run.comes("checkpoint: ")) << run.errors();
  ::kill(second.pid(), SIGTERM);
  const CommandResult ended = run.finish();
  EXPECT_EQ(ended.exit_code, 75) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr(kOnlyThere));
  EXPECT_THAT(ended.errors, HasSubstr("the same command goes on from it"));
  EXPECT_EQ(first.finish().exit_code, 75);
  EXPECT_EQ(second.finish().exit_code, 75);
  expectNothingLeft();
}

// Of a checkpoint of three hosts, on one: all that is to be copied.
TEST_F(OwnDisks, OneHostAloneIsToldAllThatItLacks) {
  plan("3x1", "uniform:3", plan_);
  plan("1x2", "uniform:2", at("single.plan"));
  const CommandProcess run = runOn0("20", saving());
  for (const char* host : {"0", "1", "2"}) nodeOn(host, std::string("node") + host, {"--index", host});
  const CommandResult saved = run.finish();
  ASSERT_EQ(saved.exit_code, 0) << saved.errors;
  const CommandResult alone =
      on("0", "alone", {"run", at("single.plan"), "--steps", "40", "--checkpoint", saved_}).finish();
  EXPECT_EQ(alone.exit_code, 66) << alone.errors;
  EXPECT_THAT(alone.errors, HasSubstr("rank-0001.safetensors on host host1 (rsync"));
  EXPECT_THAT(alone.errors, HasSubstr("rank-0002.safetensors on host host2 (rsync"));
}

TEST_F(OwnDisks, AHostWithoutAFileIsToldThatAllNeedIt) {
  plan("2x1", "uniform:2", plan_);
  fs::create_directories(at("data"));
  fs::create_directories(at("empty"));
  std::string rows;
  for (int row = 0; row < 8; ++row) {
    std::string numbers = "0.5";
    for (int i = 1; i < 32; ++i) numbers += ",0.5";
    rows += "{\"x\":[" + numbers + "],\"y\":[" + numbers + "]}\n";
  }
  writeFile(at("data/held.jsonl"), rows);
  const CommandProcess run = runOn0("3", {"--eval", at("data/held.jsonl")});
  const auto hide = [&] { show(at("empty"), at("data")); };
  nodeOn("0", "node0", {}, hide);
  nodeOn("1", "node1", {}, hide);
  const CommandResult ended = run.finish();
  EXPECT_EQ(ended.exit_code, 66) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("must have the same path on all hosts"));
}

// The files of a spare are compared when it joins, which is said, and when it takes over.
TEST_F(OwnDisks, ASpareWithOtherWeightsIsLeftOut) {
  shares_ = true;
  for (const char* file : {"mlp.onnx", "mlp.onnx.data"})
    writeFile(at(file), readFile(fs::path(PIPESHARD_SOURCE_DIR) / "examples" / file));
  model_ = at("mlp.onnx");
  std::string weights = readFile(at("mlp.onnx.data"));
  ASSERT_FALSE(weights.empty());
  weights[weights.size() / 2] = static_cast<char>(weights[weights.size() / 2] ^ 1);
  writeFile(at("other"), weights);
  plan("2x1", "uniform:2", plan_);
  const CommandProcess run = runOn0(kEndless, saving());
  const CommandProcess first = nodeOn("0", "node0", {"--index", "0"});
  const CommandProcess second = nodeOn("1", "node1", {"--index", "1"});
  ASSERT_TRUE(run.comes("checkpoint: ")) << run.errors();
  const CommandProcess spare = nodeOn("2", "spare", {}, [&] { show(at("other"), at("mlp.onnx.data")); });
  ASSERT_TRUE(run.comes("node 2 joined")) << run.errors();
  ASSERT_TRUE(run.comes("is a spare, and may be left out as its files are now: the weights " +
                        at("mlp.onnx.data") + " is another file on node 2 (host host2"))
      << run.errors();
  ::kill(second.pid(), SIGKILL);
  second.finish();
  ASSERT_TRUE(run.comes("left out: node 2 (host host2")) << run.errors();
  ASSERT_TRUE(run.comes("s after the loss")) << run.errors();
  EXPECT_THAT(run.errors(), HasSubstr("mlp.onnx.data is another file on"));
  EXPECT_THAT(run.errors(), HasSubstr("with the plan for 1 device,"));
  EXPECT_EQ(spare.finish().exit_code, 76);
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.finish().exit_code, 75);
  EXPECT_EQ(first.finish().exit_code, 75);
  expectNothingLeft();
}

// ---- with one disk: where nothing is saved ----

using NothingSaved = JobOnNodes;

TEST_F(NothingSaved, NodesEndWithTheCodeOfTheCommand) {
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "2x1", "--stages", "uniform:2", "-o", plan_});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const CommandProcess run = startListening("run", {"run", plan_, "--steps", kEndless, "--threads", "1"});
  const CommandProcess first = startNode("node0"), second = startNode("node1");
  ASSERT_TRUE(run.comes("step ")) << run.errors();
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.finish().exit_code, 128 + SIGINT);
  EXPECT_EQ(first.finish().exit_code, 128 + SIGINT);
  EXPECT_EQ(second.finish().exit_code, 128 + SIGINT);
  expectNothingLeft();
}

TEST_F(NothingSaved, BeforeTheFirstCheckpointASignalHasItsOwnCode) {
  const CommandResult planned =
      runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "2x1", "--stages", "uniform:2", "-o", plan_});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const std::vector<std::string> command = {"run", plan_, "--steps", "20", "--checkpoint", at("saved")};
  const CommandProcess run = startListening("run", command);
  ASSERT_TRUE(run.comes("waiting for 2 nodes")) << run.errors();
  const CommandProcess node = startNode("node0");
  ASSERT_TRUE(run.comes("node 0 joined")) << run.errors();
  ::kill(run.pid(), SIGTERM);
  const CommandResult ended = run.finish();
  EXPECT_EQ(ended.exit_code, 128 + SIGTERM) << ended.errors;
  EXPECT_THAT(ended.errors, HasSubstr("stopped by SIGTERM before there was a checkpoint"));
  EXPECT_EQ(node.finish().exit_code, 128 + SIGTERM);
  // Where there is one, the same command goes on from it.
  ASSERT_EQ(runPipeshard(command).exit_code, 0);
  std::vector<std::string> further = command;
  further[3] = "40";
  const CommandProcess later = startListening("later", further);
  ASSERT_TRUE(later.comes("waiting for 2 nodes")) << later.errors();
  ::kill(later.pid(), SIGTERM);
  const CommandResult left = later.finish();
  EXPECT_EQ(left.exit_code, 75) << left.errors;
  EXPECT_THAT(left.errors, HasSubstr("step-000020 is there, the same command goes on from it"));
}

}  // namespace
}  // namespace pipeshard
