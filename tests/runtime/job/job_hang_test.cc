// Jobs whose workers are late, stopped or hang: what notices them, and when.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "runtime/identity/plan_programs.h"
#include "runtime/job/coordinator.h"
#include "runtime/job/host_name.h"
#include "runtime/job/job.h"
#include "tests/expect_error.h"
#include "tests/runtime/job/job_processes.h"
#include "tests/runtime/sharded_pipeline.h"

namespace pipeshard {
namespace {

TEST(RunJob, EndsAStepThatTakesTooLongAndNamesWhoIsLate) {
  JobPlan plan;
  plan.spec.steps = kEndless;
  plan.spec.step_timeout = std::chrono::milliseconds(1500);
  std::vector<int> pids;
  const Clock::time_point start = Clock::now();
  EXPECT_ERROR(runJob(plan.spec,
                      [&](const JobProgress& progress) {
                        if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
                        if (progress.kind == JobProgress::Kind::kStep && progress.step == 2)
                          ::kill(pids[0], SIGSTOP);
                      }),
               ErrorCode::kHang, "rank 0 (host " + hostName() + ", pid " + std::to_string(pids.at(0)) + ")");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  EXPECT_TRUE(isGone(pids[0]) && isGone(pids[1]));
}

TEST(RunJob, NamesAWorkerThatIsStoppedWithinTenSeconds) {
  JobPlan plan;
  plan.spec.steps = kEndless;
  std::vector<int> pids;
  Clock::time_point stopped;
  EXPECT_ERROR(runJob(plan.spec,
                      [&](const JobProgress& progress) {
                        if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
                        if (progress.kind != JobProgress::Kind::kStep || progress.step != 2) return;
                        stopped = Clock::now();
                        ::kill(pids[0], SIGSTOP);
                      }),
               ErrorCode::kPeerUnavailable,
               std::to_string(pids.at(0)) + ") has not answered for 5 s (it is stopped, as by SIGSTOP)");
  EXPECT_LT(Clock::now() - stopped, std::chrono::seconds(10));
  EXPECT_TRUE(isGone(pids[0]) && isGone(pids[1]));
}

TEST(RunJob, NamesAWorkerThatAnswersButMakesNoProgress) {
  PipelineOptions options;
  options.endless = true;
  JobPlan plan(pipelineImages(2, options));
  plan.spec.progress_timeout = std::chrono::seconds(2);
  std::vector<int> pids;
  const auto who = [&] {
    return fmt::format("rank 1 (host {}, pid {}) answers, but its computation has made no progress for 2 s",
                       hostName(), pids.at(1));
  };
  EXPECT_ERROR(runJob(plan.spec,
                      [&](const JobProgress& progress) {
                        if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
                      }),
               ErrorCode::kHang, who());
  EXPECT_TRUE(isGone(pids[0]) && isGone(pids[1]));
}

// Rank 1 lacks a send, and a record says that the two were verified: rank 0 waits, and rank 1 has done all.
TEST(RunJob, SaysWhereAllAreWhenNobodyMoves) {
  std::vector<RankImage> images = pipelineImages(2);
  std::vector<Instruction>& list = images[1].program.instructions.unrolled();
  const auto sends = [](const Instruction& i) { return i.kind == InstructionKind::kSend; };
  list.erase(std::find_if(list.begin(), list.end(), sends));
  JobPlan plan(std::move(images));
  recordPrograms(plan.folder.path());
  plan.spec.steps = 3;
  plan.spec.stall_timeout = std::chrono::seconds(2);
  const Clock::time_point start = Clock::now();
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kHang, "no worker has moved for 2 s");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kHang, "receive");
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kHang, "worker of rank 1");
}

// A slow rank is no stall: the others wait for one that computes.
TEST(RunJob, TakesACalculationForNoStall) {
  PipelineOptions options;
  options.endless = true;
  JobPlan plan(pipelineImages(2, options));
  plan.spec.stall_timeout = std::chrono::seconds(1);
  plan.spec.progress_timeout = std::chrono::seconds(4);
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kHang, "its computation has made no progress for 4 s");
}

// In a frozen control group a process does not even die of SIGKILL.
TEST(RunJob, GivesUpAWorkerThatCannotBeKilled) {
  const std::filesystem::path group = fmt::format("/sys/fs/cgroup/freezer/pipeshard-test-{}", ::getpid());
  std::error_code error;
  std::filesystem::create_directory(group, error);
  if (!std::filesystem::exists(group / "freezer.state")) GTEST_SKIP() << "no freezer: " << error.message();
  const auto write = [&](const char* file, const std::string& text) { std::ofstream(group / file) << text; };
  JobPlan plan;
  plan.spec.steps = kEndless;
  std::vector<int> pids;
  std::vector<std::string> notices;
  Clock::time_point frozen;
  EXPECT_ERROR(runJob(plan.spec,
                      [&](const JobProgress& progress) {
                        if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
                        if (progress.kind == JobProgress::Kind::kNotice) notices.push_back(progress.text);
                        if (progress.kind != JobProgress::Kind::kStep || progress.step != 3) return;
                        write("cgroup.procs", std::to_string(pids[1]));
                        write("freezer.state", "FROZEN");
                        frozen = Clock::now();
                      }),
               ErrorCode::kPeerUnavailable, "has not answered for 5 s (its control group is frozen)");
  EXPECT_LT(Clock::now() - frozen, std::chrono::seconds(13));
  EXPECT_THAT(notices, ::testing::Contains(::testing::HasSubstr(fmt::format(
                           "unkillable: worker of rank 1 (host {}, pid {})", hostName(), pids.at(1)))));
  EXPECT_TRUE(isGone(pids[0]));
  EXPECT_FALSE(isGone(pids[1]));
  write("freezer.state", "THAWED");
  EXPECT_TRUE(waitUntilGone({pids[1]}, std::chrono::seconds(5)));
  ::waitpid(pids[1], nullptr, 0);
  EXPECT_EQ(::rmdir(group.c_str()), 0);
}

TEST(RunJob, EndsALoadingThatTakesTooLong) {
  JobPlan plan;
  plan.spec.load_timeout = std::chrono::milliseconds(3500);  // before it is silent for 5 s
  std::vector<std::string> notices;
  EXPECT_ERROR(runJob(plan.spec,
                      [&](const JobProgress& progress) {
                        if (progress.kind == JobProgress::Kind::kNotice) notices.push_back(progress.text);
                        if (progress.kind == JobProgress::Kind::kStarted && progress.rank == RankId(1))
                          ::kill(progress.pid, SIGSTOP);
                      }),
               ErrorCode::kHang, "--load-timeout");
  EXPECT_THAT(notices, ::testing::Contains(::testing::HasSubstr("loading: ")));
}

// As from a slow disk.
TEST(RunJob, TakesAWorkerThatStartsSlowlyForNoDeadOne) {
  const TemporaryFolder folder;
  JobPlan plan;
  plan.spec.worker_executable = workerBehind(folder, "sleep 7");
  plan.spec.steps = 2;
  std::vector<std::string> notices;
  const JobResult result = runJob(plan.spec, [&](const JobProgress& progress) {
    if (progress.kind == JobProgress::Kind::kNotice) notices.push_back(progress.text);
  });
  EXPECT_EQ(result.steps_done, 2);
  EXPECT_THAT(notices,
              ::testing::Contains(::testing::HasSubstr("loading: 0 of 2 workers are ready; starting")));
}

TEST(RunJob, NamesAWorkerThatIsStoppedBeforeItHasRegistered) {
  const TemporaryFolder folder;
  JobPlan plan;
  plan.spec.worker_executable = workerBehind(folder, "kill -STOP $$");
  const Clock::time_point start = Clock::now();
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kPeerUnavailable,
               "has not answered for 5 s (it is stopped, as by SIGSTOP); last seen: starting");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(12));
}
}  // namespace
}  // namespace pipeshard
