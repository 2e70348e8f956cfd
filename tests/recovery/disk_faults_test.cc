// Runs whose disk refuses or is slow while they save: they go on, say so, and leave only whole checkpoints.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "onnx_import/format/reader.h"
#include "onnx_import/format/writer.h"
#include "tests/disk_faults.h"
#include "tests/tools/command.h"

namespace pipeshard {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

class DiskFaultsOfAJob : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!DiskFaults::areAvailable()) GTEST_SKIP() << "the system does not allow seccomp's user notification";
    const CommandResult planned = runPipeshard({"plan", "examples/mlp.onnx", "--cluster", "2x1", "--stages",
                                                "uniform:2", "--optimizer", "adamw:lr=1e-3", "-o", plan_});
    ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  }
  ~DiskFaultsOfAJob() override {
    for (const pid_t pid : processesMentioning(folder_.path().string())) ::kill(pid, SIGKILL);
  }

  std::string at(const std::string& name) const { return folder_.file(name); }

  // 60 steps, saved after 20, 40 and 60.
  CommandResult run(const std::string& folder, const std::function<DiskAnswer(const DiskCall&)>& answer,
                    const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"run",          plan_,      "--steps", "60",
                                          "--checkpoint", at(folder), "--every", "20"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const DiskFaults disk(at(folder), answer);
    return finishPipeshard(startPipeshard(arguments, at("out"), at("err"), [&] { disk.enter(); }), at("out"),
                           at("err"), seconds(60));
  }
  static DiskAnswer healthy(const DiskCall&) { return {}; }
  static bool isOf(const DiskCall& call, int step) {
    return call.path.find("step-0000" + std::to_string(step)) != std::string::npos;
  }

  // Those that are listed are whole; their names.
  std::string verified(const std::string& folder) {
    const CommandResult listed = runPipeshard({"checkpoint", at(folder), "--verify"});
    EXPECT_EQ(listed.exit_code, 0) << listed.output;
    EXPECT_THAT(listed.output, Not(HasSubstr("partial")));
    return listed.output;
  }
  void expectEqual(const std::string& a, const std::string& b) {
    const CommandResult compared = runPipeshard({"checkpoint", at(a), "--compare", at(b)});
    EXPECT_EQ(compared.exit_code, 0) << compared.output;
  }
  void expectNothingPartial(const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(at(folder)))
      EXPECT_EQ(entry.path().string().find(".partial"), std::string::npos) << entry.path();
  }

  TemporaryFolder folder_;
  std::string plan_ = folder_.file("job.plan");
};

TEST_F(DiskFaultsOfAJob, ARefusalCostsACheckpointAndNothingElse) {
  ASSERT_EQ(run("whole", healthy).exit_code, 0);
  const struct {
    const char* call;
    int error;
  } faults[] = {{"open", EROFS}, {"write", ENOSPC}, {"write", EDQUOT},
                {"sync", EIO},   {"make", EDQUOT},  {"rename", EDQUOT}};
  for (const auto& fault : faults) {
    const std::string folder = std::string(fault.call) + std::to_string(fault.error);
    SCOPED_TRACE(folder);
    const CommandResult ran = run(folder, [&](const DiskCall& call) {
      return DiskAnswer{isOf(call, 40) && call.name == fault.call ? fault.error : 0};
    });
    EXPECT_EQ(ran.exit_code, 0) << ran.errors;
    EXPECT_THAT(ran.errors, HasSubstr("warning: there is no checkpoint of step 40: "));
    EXPECT_THAT(ran.errors, HasSubstr(std::strerror(fault.error)));
    EXPECT_THAT(ran.errors, Not(HasSubstr("of step 60")));
    const std::string listed = verified(folder);
    EXPECT_THAT(listed, HasSubstr("step-000020"));
    EXPECT_THAT(listed, HasSubstr("step-000060"));
    expectEqual("whole", folder);
    expectNothingPartial(folder);
  }
}

TEST_F(DiskFaultsOfAJob, ADiskThatStaysFullIsToldAtTheEndAndLeavesTheOlderOne) {
  const CommandResult ran = run("saved", [](const DiskCall& call) {
    return DiskAnswer{(isOf(call, 40) || isOf(call, 60)) && call.name == "write" ? EDQUOT : 0};
  });
  EXPECT_EQ(ran.exit_code, 73) << ran.errors;
  EXPECT_THAT(ran.errors, HasSubstr("step 60 is done, but its weights could not be saved: rank "));
  EXPECT_THAT(verified("saved"), HasSubstr("step-000020"));
  expectNothingPartial("saved");
  ASSERT_EQ(run("whole", healthy).exit_code, 0);
  ASSERT_EQ(run("saved", healthy).exit_code, 0);  // the disk has room again
  expectEqual("whole", "saved");
}

// What is left of an older one does not make the new one a failure.
TEST_F(DiskFaultsOfAJob, AnOldOneThatCannotBeRemovedIsTold) {
  const CommandResult ran = run("saved", [](const DiskCall& call) {
    const bool removes =
        call.name == "remove" && isOf(call, 20) && call.path.find(".tmp") == std::string::npos;
    return DiskAnswer{removes ? EROFS : 0};
  });
  EXPECT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_THAT(ran.errors, HasSubstr("step-000060 is there, but: cannot remove "));
  EXPECT_THAT(ran.output, HasSubstr("saved: " + at("saved") + "/step-000060"));
  EXPECT_THAT(verified("saved"), HasSubstr("step-000060"));
}

// Steps go on while a checkpoint is written; one that is due before it is there waits a while, and is given
// up then, since other ranks wait in their steps.
TEST_F(DiskFaultsOfAJob, ASlowDiskHoldsNoStepUp) {
  const CommandResult ran =
      run("saved",
          [](const DiskCall& call) {
            return DiskAnswer{0, milliseconds(isOf(call, 20) && call.name == "sync" &&
                                                      call.path.find("rank-0001") != std::string::npos
                                                  ? 15'000
                                                  : 0)};
          },
          {"--log", at("log")});
  EXPECT_EQ(ran.exit_code, 0) << ran.errors;
  EXPECT_THAT(ran.errors, HasSubstr("there is no checkpoint of step 40: rank 1: the one of step 20 is still "
                                    "being written, 5.0 s after"));
  const std::string listed = verified("saved");
  EXPECT_THAT(listed, HasSubstr("step-000020"));
  EXPECT_THAT(listed, HasSubstr("step-000060"));
  std::vector<double> times;
  std::istringstream lines(readFile(at("log") + "/steps.jsonl"));
  for (std::string line; std::getline(lines, line);)
    times.push_back(nlohmann::json::parse(line)["time"].get<double>());
  ASSERT_EQ(times.size(), 60u);
  EXPECT_LT(times[39] - times[0], 10);
}

// A coordinator that waits for the disk would be missed by the daemons after four seconds.
TEST_F(DiskFaultsOfAJob, NodesDoNotMissACoordinatorThatSyncs) {
  std::atomic<bool> has_waited{false};
  const DiskFaults disk(at("saved"), [&](const DiskCall& call) {
    const bool waits = isOf(call, 20) && call.name == "sync" &&
                       call.path.find("manifest.json") != std::string::npos && !has_waited.exchange(true);
    return DiskAnswer{0, milliseconds(waits ? 6000 : 0)};
  });
  const pid_t coordinator = startPipeshard(
      {"run", plan_, "--steps", "60", "--checkpoint", at("saved"), "--every", "20", "--listen",
       "tcp://127.0.0.1:*", "--key-file", at("job.key"), "--node-timeout", "20", "--threads", "1"},
      at("out"), at("err"), [&] { disk.enter(); });
  std::vector<pid_t> nodes;
  for (const char* index : {"0", "1"}) {
    nodes.push_back(startPipeshard({"node", "--key-file", at("job.key"), "--wait", "20", "--index", index},
                                   at(std::string("out") + index), at(std::string("err") + index)));
  }
  const CommandResult ended = finishPipeshard(coordinator, at("out"), at("err"), seconds(60));
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_TRUE(has_waited);
  EXPECT_THAT(verified("saved"), HasSubstr("step-000060"));
  for (size_t i = 0; i < nodes.size(); ++i) {
    const CommandResult node =
        finishPipeshard(nodes[i], at("out" + std::to_string(i)), at("err" + std::to_string(i)), kPatience);
    EXPECT_EQ(node.exit_code, 0) << node.errors;
  }
}

// A run that has begun to make files, and waits for nodes: where it is asked to end, it removes them.
TEST_F(DiskFaultsOfAJob, ASignalAtAnyMomentLeavesNoKeyFileAndNoScratchFolder) {
  Graph graph = readModel(PIPESHARD_SOURCE_DIR "/examples/mlp.onnx");
  graph.outputs.push_back(findValue(graph, "relu_3"));
  writeModel(graph, at("mlp.onnx"));
  const CommandResult planned =
      runPipeshard({"plan", at("mlp.onnx"), "--external-data-root", "examples", "--cluster", "2x1",
                    "--stages", "uniform:2", "--schedule", "forward-only", "-o", at("forward.plan")});
  ASSERT_EQ(planned.exit_code, 0) << planned.errors;
  const std::string here = at("here");
  std::vector<std::string> struck;  // the calls before which it came
  for (size_t n = 1; n == struck.size() + 1; ++n) {
    std::filesystem::remove_all(here);
    std::filesystem::create_directory(here);
    std::atomic<pid_t> pid{0};
    CommandResult ended;
    {
      const DiskFaults disk(here, [&](const DiskCall& call) {
        if (call.number != static_cast<int>(n)) return DiskAnswer{};
        struck.push_back(call.name);
        eventually([&] { return pid != 0; }, kPatience);
        ::kill(pid, SIGTERM);
        return DiskAnswer{};
      });
      const CommandProcess run(folder_.path(), "run",
                               {"run", at("forward.plan"), "--outputs", at("outputs.npz"), "--listen",
                                "tcp://127.0.0.1:*", "--key-file", here + "/job.key", "--node-timeout", "1"},
                               [&] {
                                 if (::chdir(here.c_str()) != 0) ::_exit(126);
                                 disk.enter();
                               });
      pid = run.pid();
      ended = run.finish();
    }
    EXPECT_THAT(ended.exit_code, AnyOf(128 + SIGTERM, 69)) << n << ": " << ended.errors;
    EXPECT_TRUE(std::filesystem::is_empty(here)) << "call " << n << ": " << ended.errors;
  }
  EXPECT_THAT(struck, IsSupersetOf({"make", "open", "write", "rename", "remove"}));
}

}  // namespace
}  // namespace pipeshard
