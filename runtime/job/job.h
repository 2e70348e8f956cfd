// A job: workers running a plan directory, on this machine or on nodes. What is asked of it, and what comes
// of it; runJob (coordinator.h) runs it.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "ir/program/step_size.h"
#include "runtime/data/data.h"
#include "runtime/device/device_choice.h"
#include "runtime/evaluation/evaluation.h"
#include "runtime/execute/dump.h"
#include "runtime/execute/memory_plan.h"
#include "runtime/profiling/operator_times.h"
#include "transport/collectives/data_plane.h"

namespace pipeshard {

class NodePool;      // runtime/job/node_pool.h
struct KeptWorkers;  // runtime/job/worker_group.h
class SignalWatch;   // runtime/job/child_process.h
struct Trace;        // ir/trace/trace_event.h

// Where a job leaves checkpoints, and goes on from the newest one that is there
// (runtime/checkpoint/checkpoint.h). One is written after the last step in any case, and when the job is
// asked to end (JobInterrupted).
struct CheckpointSpec {
  std::string directory;                   // "": none
  int64_t every_steps = 0;                 // 0: not by steps
  std::chrono::milliseconds every_time{};  // 0: not by time
  int keep = 2;                            // how many stay
  // It goes on from one of an earlier step than this, as later ones have turned out to be no good.
  int64_t before = INT64_MAX;
};

struct JobSpec {
  std::string plan_directory;  // a folder of programs (runtime/execute/rank_image.h)
  // planMark of it (runtime/identity/plan_mark.h) when the caller began to read it: where another plan has
  // been put there since, the job does not begin: Error(kVersionMismatch). "": not compared.
  std::string plan_mark;
  DataDescription data;
  int64_t steps = 1;  // in all: a job that goes on from a checkpoint does what is left
  DeviceChoice device;
  int threads_per_worker = 0;  // 0: the node's processors / its ranks, at least 1
  // Stop when the loss, or a norm of gradients that the plan takes, is NaN or infinite. Else steps whose norm
  // is not finite are left out on all ranks (Program::guard), each with a notice. Where the loss is scaled,
  // one that takes the scale under 1 stops the job all the same.
  bool check_finite = true;
  bool find_nan = false;  // ExecutorOptions::find_nan
  // Of a job without checkpoints: behind the last step ranks look at what they keep, and a value that is NaN,
  // or has become infinite, ends it with kNotANumber. Checkpoints are never made of such.
  bool check_weights = false;
  // Ranks time their operators, in steps of whole batches (RankResult::operators). On the CPU alone.
  bool operators = false;

  CheckpointSpec checkpoint;
  // Every so many steps ranks that hold copies compare them (ReplicaCheck): kReplicasDiffer. 0: never.
  int64_t check_replicas = 0;
  // Behind a step's checkpoint, and after the last step unless the job is asked to end; also where a
  // checkpoint has all steps, and nothing else is left to do.
  EvaluationSpec evaluation;

  // "": workers write to this process's standard error, else to ranks/0003.log in this folder.
  std::string log_directory;
  std::string dump_directory;  // "": nothing is written; created if needed
  DumpSelection dump;
  int64_t kept_steps = INT64_MAX;  // how many of the last steps JobResult has: each takes memory
  // "": each step starts from what the step before left. Else step s > 1 starts from the parameters and
  // states in this folder's dump of step s-1, by a job of `adopt_ranks` ranks.
  std::string adopt_directory;
  int adopt_ranks = 0;

  // nullptr: nothing is recorded. Else what every rank did in the last `trace_steps` steps is here when
  // runJob ends, also when it throws: as far as the ranks had come and answer.
  Trace* trace = nullptr;
  int64_t trace_steps = 20;

  // nullptr: all workers run on this machine. Else rank r runs on node node_of_rank[r] of those that join.
  NodePool* nodes = nullptr;
  IdVector<RankId, int> node_of_rank;
  DataPlane data_plane = DataPlane::kCurve;  // between them

  // How a worker is started (on nodes the daemon's own executable is): the executable is called with these
  // arguments and then the options of worker.h.
  std::string worker_executable = "/proc/self/exe";
  std::vector<std::string> worker_arguments = {"worker"};

  // from start until all weights are in memory
  std::chrono::milliseconds load_timeout{std::chrono::minutes(10)};
  std::chrono::milliseconds step_timeout{std::chrono::minutes(30)};      // one step on all ranks
  std::chrono::milliseconds transfer_timeout{std::chrono::minutes(10)};  // one wait for a peer inside a step
  // No rank moves, and some wait for others; 0: learned from what the slowest instruction has taken.
  std::chrono::milliseconds stall_timeout{0};
  // one operator of a rank that computes
  std::chrono::milliseconds progress_timeout{std::chrono::minutes(2)};
  // for workers to end by themselves before they are killed
  std::chrono::milliseconds stop_timeout{std::chrono::seconds(2)};

  // Of a job that is started again: whether it will be, after this exit code, and where the workers of this
  // machine stay until then (nullptr: nowhere). With nodes, NodePool::keepNodesAfter decides.
  std::function<bool(int exit_code)> goes_on_after;
  KeptWorkers* kept_workers = nullptr;

  // what SignalWatch takes stops the job while runJob runs (JobInterrupted); previous handlers return
  bool handle_signals = true;
  // the caller's watch, used instead of an own one (for a command that is more than a job)
  SignalWatch* signals = nullptr;
};

struct StepResult;

// What people see meanwhile. `rank` is invalid for the job as a whole.
struct JobProgress {
  enum class Kind : uint8_t {
    kNodeJoined,
    kStarted,
    kResumed,
    kLoaded,
    kStep,
    kCheckpoint,
    kEvaluated,
    kRestarted,
    kNotice
  };
  Kind kind = Kind::kStarted;
  int node = -1;          // kNodeJoined
  RankId rank = {};       // kStarted, kLoaded
  int pid = 0;            // kStarted; of the daemon in kNodeJoined
  std::string host = {};  // kStarted, kNodeJoined
  // kStep: this step is done on all ranks; kEvaluated: after this step; kResumed, kCheckpoint: of the
  // checkpoint; kRestarted: the newest that had been done before the loss
  int64_t step = 0;
  int64_t from = 0;  // kRestarted: the job goes on behind this step
  // kNotice: for a log, such as that a stranger was refused; kResumed, kCheckpoint: the checkpoint's folder;
  // kLoaded: the rank's device, as in RankResult; kRestarted: what was lost
  std::string text = {};
  std::optional<double> loss = {};  // kEvaluated: of all held-out data
  bool exact = true;                // kEvaluated: EvaluationSpec::exact
  // kRestarted: from the loss (JobFailed::began) until a step was done again
  double seconds = 0;
  const StepResult* result = nullptr;  // kStep: all that is known of it, for as long as the callback runs
};
using JobProgressCallback = std::function<void(const JobProgress&)>;

struct StepResult {
  int64_t step = 0;  // 1-based
  // of the whole batch; of a window of several updates: the mean over them; nothing: the model has none
  std::optional<double> loss;
  std::vector<double> losses;  // of every update, where a step is a window of several; else empty
  double seconds = 0;          // on the slowest rank
  IdVector<RankId, double> compute_seconds;
  IdVector<RankId, double> transfer_seconds;  // waiting included
  // by name, as the plan's programs give them (Result::Kind::kMeasure): "gradient_norm"
  std::vector<std::pair<std::string, double>> measures = {};
  std::optional<double> measure(std::string_view name) const;
  StepSize size = StepSize::kWholeBatch;     // which batch it had, of which sequences
  bool applied = true;                       // false: nothing was updated (Program::guard)
  std::vector<std::string> not_finite = {};  // of a step that was not applied: what ranks know of the reason
  // of the worker that holds most, as it was looked at last (twice a second); 0: not yet
  int64_t resident_bytes = 0;
};

// What a rank's operators took in `steps` steps, and what it found that kernels reach.
struct RankOperators {
  int64_t steps = 0;
  double step_seconds = 0;  // all of them together
  KernelRates rates;
  std::vector<NodeTime> nodes;
};

struct RankResult {
  int pid = 0;
  std::string device;          // what it computes on, "cuda:0 (NVIDIA H100 PCIe)"; "": the CPU
  int64_t arena_bytes = 0;     // planned: all tensors of the program
  int64_t constant_bytes = 0;  // constants of the subgraphs
  // shared memory of the node's communicator, one for all its ranks (SharedSegments)
  int64_t communicator_bytes = 0;
  int64_t peak_resident_bytes = 0;  // measured: the process's high-water mark
  int64_t peak_device_bytes = 0;    // measured: what it held of its GPU's memory at most; 0: it has none
  MemoryParts memory;
  RankOperators operators;  // nothing, unless JobSpec::operators
};

struct JobResult {
  std::vector<StepResult> steps;  // the last JobSpec::kept_steps of them
  int64_t steps_done = 0;         // by this run of the job: behind `resumed_step`
  int64_t steps_left_out = 0;     // of them; they are not applied
  IdVector<RankId, RankResult> ranks;
  std::string transport;  // how GPUs give each other tensors, for people; "": there are none
  double load_seconds = 0;
  std::vector<std::string> dump_files;  // in order of step, rank
  int64_t resumed_step = 0;
  std::string checkpoint;  // the newest one's folder; "": none
};

// The user or a job scheduler stopped the job. Code kRequeue.
class JobInterrupted : public Error {
 public:
  // `checkpoint`: from which the same command goes on; "": the job is to keep some, and there is none yet:
  // the same command begins anew; nothing: it keeps none, or work is lost.
  explicit JobInterrupted(int signal, const std::optional<std::string>& checkpoint = std::nullopt);
  int signal() const { return signal_; }
  bool goesOn() const { return goes_on_; }  // from a checkpoint
  // Of the command, and of its nodes: the code where it goes on, else 128 + signal.
  int exitCode() const { return goes_on_ ? static_cast<int>(code()) : 128 + signal_; }

 private:
  int signal_;
  bool goes_on_;
};

// What ends a job of which processes had been started.
class JobFailed : public Error {
 public:
  JobFailed(ErrorCode code, std::string message, std::chrono::steady_clock::time_point began,
            std::vector<int> daemons)
      : Error(code, std::move(message)), began_(began), daemons_(std::move(daemons)) {}
  // Before it was noticed: when the one that does not answer was heard of last, say.
  std::chrono::steady_clock::time_point began() const { return began_; }
  // Of nodes, whose daemons have said so or have other files than others, by control rank
  // (JoinedNode::control_rank); empty: it is of no node, or of a worker's.
  const std::vector<int>& daemons() const { return daemons_; }

 private:
  std::chrono::steady_clock::time_point began_;
  std::vector<int> daemons_;
};

}  // namespace pipeshard
