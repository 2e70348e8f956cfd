// The coordinator of a job: what coordinator.cc (the way of a job) and coordinator_watch.cc (what it hears
// meanwhile) share. Internal to the two.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/checkpoint/replica_hashes.h"
#include "runtime/disks/dump_folder.h"
#include "runtime/evaluation/evaluation.h"
#include "runtime/execute/rank_image.h"
#include "runtime/feed/loader_feed.h"
#include "runtime/identity/build_identity.h"
#include "runtime/job/checkpoint_keeper.h"
#include "runtime/job/child_process.h"
#include "runtime/job/job.h"
#include "runtime/job/worker_placement.h"
#include "runtime/trace/straggler_watch.h"
#include "transport/control/control.h"
#include "transport/control/control_server.h"

namespace pipeshard {

class Coordinator {
 public:
  Coordinator(const JobSpec& spec, const JobProgressCallback& progress);

  JobResult run();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLookAround{100};

  struct Worker {
    bool started = false;
    Clock::time_point last_heard;
    std::string where = "starting";
    bool loaded = false;
    bool finished = false;
    int64_t steps_done = 0;
    int64_t batches_done = 0;  // of the evaluation
    int64_t resident_bytes = 0;
    uint64_t progress = 0;  // of its computing thread
    Clock::time_point last_progress;
    bool waiting = false;          // inside a step, for another rank
    bool idle = false;             // for a command
    Clock::time_point last_moved;  // neither of the two all the time, or one after the other
  };

  bool hasSteps() const { return last_step_ > result_.resumed_step; }  // to do
  // Steps, or the evaluation of the last one, which the checkpoint has.
  bool hasWork() const {
    return hasSteps() || (spec_.evaluation.asked() && spec_.evaluation.known_step != result_.resumed_step);
  }
  void makePlacement();
  void endWhileReading();
  void holdPrograms();
  WorkerOptions commonOptions() const;
  int attempt() const;  // 0: the coordinator listens for this one only
  void noteStarted();
  Clock::time_point startWorkers();  // when, not counting the wait for nodes
  void openCheckpoints();
  void openPipe();
  void grantSteps(int64_t done);
  void save(int64_t step);
  int64_t nextReplicaCheck(int64_t after) const;
  std::optional<Failure> handleHashes(RankId rank, const nlohmann::json& body);
  void evaluate(int64_t step);
  void tellUnevaluated(int64_t step);
  void measurePace();
  void endEarly(int signal);
  JobResult finish();
  bool isDone(int64_t step) const;  // by all ranks
  void finishStep(int64_t step);
  void finishDoneSteps();
  void leaveOut(const StepResult& result);
  void nameStraggler(const StepResult& result);
  void stopWorkers(int exit_code, const std::string& message);
  void abortWorkers();
  bool goesOnAfter(int exit_code) const;
  void release(int exit_code, const std::string& message);
  [[noreturn]] void failJob(Failure first);
  void report(const JobProgress& progress) {
    if (progress_) progress_(progress);
  }
  // A worker that is gone is no error here: its end, or its silence, is the cause, and comes with its name.
  void send(RankId rank, std::string_view type, const nlohmann::json& body);
  void sendToAll(std::string_view type, const nlohmann::json& body);
  // "worker of rank 2 (host a, pid 4711)".
  std::string nameOf(RankId rank) const;

  // One wait: at most kLookAround; then what came is worked off. The first failure, if any.
  std::optional<Failure> lookAround();
  Clock::duration forgiveAbsence();
  void heedSignals();
  std::optional<Failure> handleMessage(const ControlMessage& message);
  std::optional<Failure> handleWorker(RankId rank, const ControlMessage& message);
  std::optional<Failure> handleRegister(RankId rank, const nlohmann::json& body);
  void handleHeartbeat(Worker& worker, const nlohmann::json& body);
  std::optional<Failure> handleLoaded(RankId rank, const nlohmann::json& body);
  void handleSaved(RankId rank, const nlohmann::json& body);
  void handleOperators(RankId rank, const nlohmann::json& body);
  std::optional<Failure> findSpoiledWeights() const;
  void tellWhatIsSaved();
  void handleStored(RankId sender, const nlohmann::json& body);
  std::optional<Failure> handleStep(RankId rank, Worker& worker, const nlohmann::json& body);
  void handleEvaluated(Worker& worker, const nlohmann::json& body);
  bool isStarting(RankId rank) const;
  std::optional<Failure> findStuckWorker() const;
  Clock::duration stallLimit() const;
  std::optional<Failure> findStall() const;
  std::string whereAllAre() const;
  void waitForLoading(Clock::time_point start);
  void requireSpaceToWrite();
  void clearDumps();

  template <typename Condition>
  void waitFor(Condition condition, Clock::time_point deadline, const std::string& what) {
    const auto is_met = [&] { return std::all_of(workers_.begin(), workers_.end(), condition); };
    while (!is_met()) {
      if (std::optional<Failure> failure = lookAround()) failJob(std::move(*failure));
      if (Clock::now() < deadline || is_met()) continue;
      std::string late;
      for (RankId rank : workers_.ids()) {
        const Worker& worker = workers_[rank];
        if (!condition(worker)) late += fmt::format("\n  {}: {}", nameOf(rank), worker.where);
      }
      failJob({ErrorCode::kHang, fmt::format("{} took too long; still there:{}", what, late)});
    }
  }

  const JobSpec& spec_;
  const JobProgressCallback& progress_;
  std::optional<ProgramFolder> folder_;  // of the plan, until the workers are placed
  std::vector<ProgramFolder> traced_;    // of a job that is traced: training's, those that evaluate
  int ranks_;
  IdVector<RankId, std::string> programs_;  // digests of what ranks are to load
  RankComparison compared_;
  std::unique_ptr<ControlServer> own_server_;  // of a job on this machine; nodes have joined at their pool's
  ControlServer* server_ = nullptr;
  std::string job_id_;
  std::optional<JobKeys> keys_;
  std::optional<SignalWatch> own_signals_;
  SignalWatch* signals_ = nullptr;  // nullptr: signals are not handled
  std::optional<DumpFolder> dumps_;
  std::optional<CheckpointKeeper> keeper_;
  std::optional<ReplicaCheck> replica_check_;
  std::optional<StragglerWatch> stragglers_;
  int64_t last_step_ = 0;   // that is to be done
  int64_t granted_ = 0;     // the last step that workers have been asked for
  int interrupted_by_ = 0;  // signal
  Clock::time_point last_look_ = Clock::now();
  JobResult result_;
  // what ranks have said of the steps that are not done on all of them: the first is that behind
  // resumed_step + steps_done
  struct OpenStep {
    StepResult result;
    std::vector<std::string> dumps;  // by rank
  };
  std::deque<OpenStep> open_steps_;
  std::optional<Failure> spoiled_;  // the first step whose weights are not finite, so not saved
  double last_seconds_ = 1;         // that a step took, or the coordinator with it, if that was longer
  Clock::time_point pace_start_{};  // of the steps by which pace_ is measured next
  int64_t pace_steps_ = 0;
  double pace_ = 0.02;               // seconds in which the coordinator gets on by a step
  Clock::duration longest_pause_{};  // in which a worker inside a step did not get to its next instruction
  WeightedLoss evaluated_;           // so far, by the evaluation that goes on
  int64_t last_evaluated_ = -1;      // the step of the last one that was begun
  // addresses that workers have left for each other, as they came
  std::vector<nlohmann::json> stored_;
  IdVector<RankId, Worker> workers_;
  std::unique_ptr<LoaderFeed> feed_;  // of data that come through a pipe
  // last: its processes are killed and reaped before anything that they use goes away
  std::unique_ptr<WorkerPlacement> placement_;
};

}  // namespace pipeshard
