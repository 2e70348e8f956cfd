// Jobs with real processes. This program is test, coordinator ("coordinate DIR STEPS": a job in a process of
// its own that prints its workers) and worker ("worker ...").
#include "runtime/job/job.h"
#include "ir/base/ids_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "ir/program/program_verify.h"
#include "ir/trace/trace_event.h"
#include "runtime/execute/dump.h"
#include "runtime/execute/local_program.h"
#include "runtime/identity/plan_programs.h"
#include "runtime/job/coordinator.h"
#include "runtime/job/host_name.h"
#include "runtime/job/worker.h"
#include "runtime/validation/validate.h"
#include "tests/expect_error.h"
#include "tests/runtime/job/job_processes.h"
#include "tests/runtime/pipeline_program.h"
#include "tests/runtime/sharded_pipeline.h"
#include "tests/temporary_folder.h"

namespace pipeshard {
namespace {

TEST(RunJob, ComputesTheBitsOfOneProcess) {
  JobPlan plan;
  plan.spec.steps = 3;
  plan.spec.dump_directory = plan.folder.file("dump");
  plan.spec.dump = {true, true, true};
  std::vector<int> pids;
  std::vector<int64_t> steps;
  const JobResult result = runJob(plan.spec, [&](const JobProgress& progress) {
    if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
    if (progress.kind == JobProgress::Kind::kStep) steps.push_back(progress.step);
  });
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
  ASSERT_EQ(pids.size(), 2u);
  EXPECT_TRUE(isGone(pids[0]) && isGone(pids[1]));
  EXPECT_EQ(result.dump_files.size(), 6u);
  ASSERT_EQ(result.ranks.size(), 2u);
  for (const RankResult& rank : result.ranks) {
    EXPECT_EQ(rank.memory.total(), rank.arena_bytes);
    EXPECT_GT(rank.peak_resident_bytes, 1 << 20);
  }
  LocalProgram local(std::move(pipelineImages(1)[0]), {"", 5});
  for (int64_t step = 1; step <= 3; ++step) {
    EXPECT_EQ(result.steps[step - 1].loss, *local.runStep(step).loss);
    const StepDump dump = StepDump::open(plan.spec.dump_directory, step, 2);
    for (const char* name : {"w0", "w1"}) {
      EXPECT_EQ(dump.read(std::string("parameter/") + name).elements(),
                local.elements(*local.findResult(Result::Kind::kParameter, name)));
      EXPECT_EQ(dump.read(std::string("gradient/") + name).elements(),
                local.elements(*local.findResult(Result::Kind::kGradient, name)));
    }
  }
}

// One device's dump of its steps.
std::string dumpOfOneDevice(JobPlan& plan, int steps) {
  plan.spec.steps = steps;
  plan.spec.dump_directory = plan.folder.file("dump");
  plan.spec.dump = {true, true, true};
  runJob(plan.spec);
  return plan.spec.dump_directory;
}

TEST(RunJob, AdoptsADumpIntoParts) {
  JobPlan one(pipelineImages(1));
  const std::string dump = dumpOfOneDevice(one, 2);
  std::vector<RankImage> images = shardedPipelineImages(3);
  for (RankImage& image : images) {
    for (Buffer& buffer : image.program.buffers) {
      if (buffer.source) std::get<Constant>(*buffer.source).bytes.assign(15 * sizeof(double), std::byte{0});
      if (buffer.source && buffer.value == "w1")
        std::get<Constant>(*buffer.source).bytes.resize(10 * sizeof(double));
    }
  }
  JobPlan sharded(images);
  sharded.spec.adopt_directory = dump;
  sharded.spec.adopt_ranks = 1;
  dumpOfOneDevice(sharded, 2);
  const StepDump got = StepDump::open(sharded.spec.dump_directory, 2, 3);
  const StepDump want = StepDump::open(dump, 2, 1);
  for (const std::string& name : want.names()) {
    const std::vector<double> numbers = got.read(name).elements(), expected = want.read(name).elements();
    ASSERT_EQ(numbers.size(), expected.size());
    for (size_t i = 0; i < numbers.size(); ++i)
      EXPECT_NEAR(numbers[i], expected[i], 1e-12 * std::max(1.0, std::abs(expected[i]))) << name;
  }
  for (double element : StepDump::open(sharded.spec.dump_directory, 1, 3).read("gradient/w0").elements())
    EXPECT_EQ(element, 0);
}

// Of steps that are done again on fewer ranks, nothing of those that are no more is left behind.
TEST(RunJob, LeavesNoDumpOfRanksThatAreNoMore) {
  JobPlan three(shardedPipelineImages(3)), one(pipelineImages(1));
  const std::string dump = dumpOfOneDevice(three, 3);
  three.folder.write("dump/step-000001.rank-0002.safetensors.kept", "");
  one.spec.steps = 2;
  one.spec.dump_directory = dump;
  std::vector<std::string> notices;
  runJob(one.spec, [&](const JobProgress& progress) {
    if (progress.kind == JobProgress::Kind::kNotice) notices.push_back(progress.text);
  });
  EXPECT_THAT(notices, ::testing::Contains(::testing::HasSubstr(
                           "what was there of steps 1 to 2 is taken out; they are done again")));
  for (const int rank : {0, 1, 2}) {
    for (const int64_t step : {1, 2, 3}) {
      EXPECT_EQ(std::filesystem::exists(dump + "/" + dumpFileName(step, RankId(rank))),
                rank == 0 || step == 3)
          << "rank " << rank << ", step " << step;
    }
  }
  EXPECT_TRUE(std::filesystem::exists(dump + "/step-000001.rank-0002.safetensors.kept"));
}

TEST(Validate, ComparesPartsWithWholeTensors) {
  for (const bool same_start : {false, true}) {
    JobPlan one(pipelineImages(1)), sharded(shardedPipelineImages(3));
    ValidateSpec spec;
    spec.planned = sharded.spec;
    spec.reference = one.spec;
    spec.planned.steps = spec.reference.steps = 3;
    spec.same_start = same_start;
    spec.work_directory = sharded.folder.file("compared");
    setPromisedBounds(DataType::kFloat64, spec);
    const ValidationReport report = validate(spec, [](const std::string&) {});
    EXPECT_TRUE(report.passed()) << report.tensors[0].name << " " << report.tensors[0].error;
    // loss, gradients, parameters, updated parameters
    EXPECT_EQ(report.tensors.size(), 3u * (1 + 2 + 2 + 2));
    EXPECT_EQ(report.ranks, 3);
  }
}

TEST(Validate, FindsAPartThatIsNotUpdated) {
  std::vector<RankImage> images = shardedPipelineImages(2);
  Program& program = images[1].program;
  program.instructions.unrolled().erase(
      std::find_if(program.instructions.begin(), program.instructions.end(),
                   [](const Instruction& i) { return i.kind == InstructionKind::kUpdate; }));
  JobPlan one(pipelineImages(1)), sharded(images);
  ValidateSpec spec;
  spec.planned = sharded.spec;
  spec.reference = one.spec;
  spec.planned.steps = spec.reference.steps = 1;
  spec.work_directory = sharded.folder.file("compared");
  const ValidationReport report = validate(spec, [](const std::string&) {});
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.tensors[0].name, "w0");
  EXPECT_EQ(report.tensors[0].kind, ComparedKind::kUpdatedParameter);
}

TEST(RunJob, NamesAWorkerThatWasKilledWithinFiveSeconds) {
  JobPlan plan;
  plan.spec.steps = kEndless;
  std::vector<int> pids;
  Clock::time_point killed;
  EXPECT_ERROR(
      runJob(plan.spec,
             [&](const JobProgress& progress) {
               if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
               if (progress.kind != JobProgress::Kind::kStep || progress.step != 3) return;
               killed = Clock::now();
               ::kill(pids[1], SIGKILL);
             }),
      ErrorCode::kPeerUnavailable,
      "rank 1 (host " + hostName() + ", pid " + std::to_string(pids.at(1)) + ") was killed by signal 9");
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(5));
  EXPECT_TRUE(isGone(pids[0]) && isGone(pids[1]));
}

TEST(RunJob, LeavesATrace) {
  JobPlan plan;
  plan.spec.steps = 5;
  Trace trace;
  plan.spec.trace = &trace;
  plan.spec.trace_steps = 3;
  runJob(plan.spec);
  verifyTrace(trace);
  EXPECT_EQ(trace.ranks, 2);
  std::set<std::pair<int, int64_t>> seen;
  for (const TraceEvent& event : trace.events) seen.emplace(event.rank.index(), event.step);
  EXPECT_EQ(seen, (std::set<std::pair<int, int64_t>>{{0, 3}, {0, 4}, {0, 5}, {1, 3}, {1, 4}, {1, 5}}));
  EXPECT_FALSE(trace.memory.empty());
}

TEST(RunJob, LeavesATraceOfWhatAKilledWorkerDid) {
  JobPlan plan;
  plan.spec.steps = kEndless;
  Trace trace;
  plan.spec.trace = &trace;
  std::vector<int> pids;
  EXPECT_ERROR(runJob(plan.spec,
                      [&](const JobProgress& progress) {
                        if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
                        if (progress.kind == JobProgress::Kind::kStep && progress.step == 30)
                          ::kill(pids[1], SIGKILL);
                      }),
               ErrorCode::kPeerUnavailable, "was killed by signal 9");
  verifyTrace(trace);
  for (const int rank : {0, 1}) {
    EXPECT_GT(std::count_if(trace.events.begin(), trace.events.end(),
                            [&](const TraceEvent& event) { return event.rank == RankId(rank); }),
              10);
  }
}

// The kernel that never ends is in the trace of a job that is given up, and so is the rank that waits for it.
TEST(RunJob, LeavesATraceThatShowsWhereItHung) {
  PipelineOptions options;
  options.endless = true;
  JobPlan plan(pipelineImages(2, options));
  plan.spec.progress_timeout = std::chrono::seconds(2);
  Trace trace;
  plan.spec.trace = &trace;
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kHang, "made no progress");
  std::vector<std::string> unfinished;
  for (const TraceEvent& event : trace.events) {
    if (event.name.ends_with("(unfinished)"))
      unfinished.push_back(fmt::format("{} {}", event.rank, traceEventKindName(event.kind)));
  }
  EXPECT_EQ(unfinished, (std::vector<std::string>{"0 receive", "1 compute"}));
}

// Every sum in the background, by workers' second threads.
std::vector<RankImage> imagesWithLanes(int ranks) {
  std::vector<RankImage> images = shardedPipelineImages(ranks);
  std::vector<Program> programs;
  for (RankImage& image : images) {
    for (Instruction& instruction : image.program.instructions)
      instruction.background = instruction.kind == InstructionKind::kAllReduce;
    programs.push_back(image.program);
  }
  verifyPrograms(programs);
  return images;
}

TEST(RunJob, ComputesTheSameBitsInTheBackground) {
  JobPlan before(shardedPipelineImages(3)), beside(imagesWithLanes(3));
  for (JobPlan* plan : {&before, &beside}) {
    plan->spec.steps = 20;
    plan->spec.dump_directory = plan->folder.file("dump");
    plan->spec.dump = {true, true, true};
    runJob(plan->spec);
  }
  for (const int64_t step : {1, 20}) {
    const StepDump want = StepDump::open(before.spec.dump_directory, step, 3),
                   got = StepDump::open(beside.spec.dump_directory, step, 3);
    for (const std::string& name : want.names())
      EXPECT_TRUE(got.read(name).bytes == want.read(name).bytes) << name;
  }
}

TEST(RunJob, NamesAWorkerThatWasKilledWhileOthersMeetItInTheBackground) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    JobPlan plan(imagesWithLanes(3));
    plan.spec.steps = kEndless;
    plan.spec.transfer_timeout = std::chrono::seconds(60);
    std::vector<int> pids;
    Clock::time_point killed;
    EXPECT_ERROR(runJob(plan.spec,
                        [&](const JobProgress& progress) {
                          if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
                          if (progress.kind != JobProgress::Kind::kStep || progress.step != 30) return;
                          ::kill(pids[1], signal);
                          killed = Clock::now();
                        }),
                 ErrorCode::kPeerUnavailable, "worker of rank 1");
    EXPECT_LT(Clock::now() - killed, std::chrono::seconds(10));
    EXPECT_TRUE(waitUntilGone(pids, std::chrono::seconds(10)));
  }
}

TEST(RunJob, NamesAWorkerThatIsKilledWhileLoading) {
  JobPlan plan;
  EXPECT_ERROR(runJob(plan.spec,
                      [&](const JobProgress& progress) {
                        if (progress.kind == JobProgress::Kind::kStarted && progress.rank == RankId(1))
                          ::kill(progress.pid, SIGKILL);
                      }),
               ErrorCode::kPeerUnavailable, "worker of rank 1");
}

TEST(RunJob, NamesAWorkerThatIsKilledBetweenLoadingAndRunning) {
  JobPlan plan;
  std::vector<int> pids;
  int loaded = 0;
  EXPECT_ERROR(
      runJob(plan.spec,
             [&](const JobProgress& progress) {
               if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
               if (progress.kind != JobProgress::Kind::kLoaded || ++loaded < 2) return;
               ::kill(pids[0], SIGKILL);
               // its connection is closed when the coordinator sends it the word to run
               ::usleep(200'000);
             }),
      ErrorCode::kPeerUnavailable,
      "rank 0 (host " + hostName() + ", pid " + std::to_string(pids.at(0)) + ") was killed by signal 9");
}

TEST(RunJob, PassesOnAWorkersErrorAndCode) {
  std::vector<RankImage> images = pipelineImages(2);
  images[1].subgraphs[0].nodes[0].domain = "some.where";
  images[1].subgraphs[0].nodes[0].op_type = "Strange";
  images[1].subgraphs[0].opset_imports["some.where"] = 1;
  JobPlan plan(std::move(images));
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kBadModel, "Strange");
}

// The messages of rank 1 come in another order than rank 0 takes them: it waited for ever, or crashed.
TEST(RunJob, RefusesProgramsThatDoNotFitEachOther) {
  std::vector<RankImage> images = pipelineImages(2);
  std::vector<Instruction>& list = images[1].program.instructions.unrolled();
  const auto sends = [](const Instruction& i) { return i.kind == InstructionKind::kSend; };
  const auto first = std::find_if(list.begin(), list.end(), sends);
  ASSERT_NE(first, list.end());
  list.erase(first);
  JobPlan plan(std::move(images));
  const Clock::time_point start = Clock::now();
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kConfiguration, "do not fit each other");
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
}

TEST(RunJob, RefusesAProgramThatUsesWhatItHasNot) {
  std::vector<RankImage> images = pipelineImages(2);
  const auto accumulates = [](const Instruction& i) { return i.kind == InstructionKind::kAccumulate; };
  std::vector<Instruction>& list = images[1].program.instructions.unrolled();
  const auto found = std::find_if(list.begin(), list.end(), accumulates);
  ASSERT_NE(found, list.end());
  found->inputs = {BufferId(9999)};
  JobPlan plan(std::move(images));
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kConfiguration, "expected an integer from 0 to");
}

TEST(RunJob, NoticesAPlanThatIsReplacedWhileItLoads) {
  const TemporaryFolder folder;
  JobPlan plan;
  // Before a worker reads it, and behind the coordinator's own look.
  std::string changes;
  for (const int kind : {0, 1})
    changes += fmt::format("echo >> {}\n", plan.folder.file(fmt::format("kinds/000{}.json", kind)));
  plan.spec.worker_executable = workerBehind(folder, changes);
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kVersionMismatch, "has loaded other programs");
}

TEST(RunJob, ReportsTheCauseAndNotItsConsequences) {
  PipelineOptions options;
  options.rate = 1e160;
  JobPlan plan(pipelineImages(2, options));
  plan.spec.steps = kEndless;
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kNotANumber, "the loss of step 2");
}

TEST(RunJob, GoesOnWithALossThatIsNotFiniteWhenAsked) {
  PipelineOptions options;
  options.rate = 1e160;
  JobPlan plan(pipelineImages(2, options));
  plan.spec.steps = 2;
  plan.spec.check_finite = false;
  const JobResult result = runJob(plan.spec);
  EXPECT_TRUE(std::isfinite(*result.steps[0].loss));
  EXPECT_FALSE(std::isfinite(*result.steps[1].loss));
}

TEST(RunJob, StopsOnASignalAndGivesHandlersBack) {
  JobPlan plan;
  plan.spec.steps = kEndless;
  std::vector<int> pids;
  struct sigaction before {
  }, after{};
  sigaction(SIGTERM, nullptr, &before);
  try {
    runJob(plan.spec, [&](const JobProgress& progress) {
      if (progress.kind == JobProgress::Kind::kStarted) pids.push_back(progress.pid);
      if (progress.kind == JobProgress::Kind::kStep && progress.step == 2) ::raise(SIGTERM);
    });
    ADD_FAILURE() << "the job was not stopped";
  } catch (const JobInterrupted& interrupted) {
    EXPECT_EQ(interrupted.signal(), SIGTERM);
    EXPECT_EQ(interrupted.code(), ErrorCode::kRequeue);
  }
  sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  EXPECT_TRUE(isGone(pids[0]) && isGone(pids[1]));
}

TEST(RunJob, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  JobSpec spec;
  spec.plan_directory = folder.path();
  EXPECT_ERROR(runJob(spec), ErrorCode::kMissingInput, "not a plan directory");
  std::filesystem::create_directories(folder.path() / "ranks/0001");
  EXPECT_ERROR(runJob(spec), ErrorCode::kVersionMismatch, "older pipeshard");
  JobPlan plan;
  plan.spec.worker_executable = folder.file("none");
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kMissingInput, "cannot execute the worker");
  plan.spec.worker_executable = "/bin/false";
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kPeerUnavailable, "ended with exit code 1");
  plan.spec.steps = 0;
  EXPECT_ERROR(runJob(plan.spec), ErrorCode::kUsage, "0 steps");
}

TEST(RunJob, LeavesNoWorkerWhenTheCoordinatorIsKilled) {
  JobPlan plan;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const int coordinator = ::fork();
  if (coordinator == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(ends[1], STDOUT_FILENO);
    ::execl("/proc/self/exe", "runtime_job_test", "coordinate", plan.folder.path().c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  FILE* output = ::fdopen(ends[0], "r");
  int pid0 = 0, pid1 = 0, step = 0;
  ASSERT_EQ(std::fscanf(output, "started %d started %d step %d", &pid0, &pid1, &step), 3);
  EXPECT_FALSE(isGone(pid0) || isGone(pid1));
  ::kill(coordinator, SIGKILL);
  ::waitpid(coordinator, nullptr, 0);
  EXPECT_TRUE(waitUntilGone({pid0, pid1}, std::chrono::seconds(20)));
  std::fclose(output);
}

int coordinate(const std::string& directory) {
  JobSpec spec;
  spec.plan_directory = directory;
  spec.steps = kEndless;
  runJob(spec, [](const JobProgress& progress) {
    if (progress.kind == JobProgress::Kind::kStarted) std::printf("started %d\n", progress.pid);
    if (progress.kind == JobProgress::Kind::kStep && progress.step == 2) std::printf("step %d\n", 2);
    std::fflush(stdout);
  });
  return 0;
}

}  // namespace
}  // namespace pipeshard

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "worker") return pipeshard::workerMain(std::vector<std::string>(argv + 2, argv + argc));
  if (mode == "coordinate" && argc == 3) return pipeshard::coordinate(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
