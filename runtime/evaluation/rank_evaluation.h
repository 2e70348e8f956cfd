// A rank's side of an evaluation.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/evaluation/evaluation.h"
#include "runtime/execute/step_runner.h"

namespace pipeshard {

// In a plan directory: a folder of programs that evaluate, as itself is one of those that train.
inline constexpr const char* kEvaluationFolder = "evaluation";

class RankEvaluation {
 public:
  // Loads the rank's programs of `programs`, a plan directory's evaluation/. `training`: those of the job,
  // whose tensors they work on; it must outlive this. A loss that is not finite is a result here, no error.
  // Errors as StepRunner and makeDataSource.
  RankEvaluation(const EvaluationSpec& spec, ProgramFolder& programs, const StepRunner& training,
                 ExecutorOptions options);

  // Bytes of an arena that holds both.
  size_t arenaBytes() const;
  std::vector<std::vector<RankId>> backgroundGroups() const { return runner_->backgroundGroups(); }
  // As those of StepRunner.
  void communicateBy(DeviceCommunicator& communicator,
                     std::map<StepSize, std::vector<CommunicationStep>> orders,
                     std::chrono::milliseconds timeout) {
    runner_->communicateBy(communicator, std::move(orders), timeout);
  }
  // Behind StepRunner::attach of the programs that train, with the same arena and communicators. Errors as
  // Executor::attachAsGuest.
  void attach(std::span<std::byte> arena, Communicator* communicator, Communicator* background);

  // As those of StepRunner; `first`: behind those of the programs that train.
  std::vector<TracedProgram> tracedPrograms() const;
  void record(TraceRecorder& recorder, size_t first) { runner_->record(recorder, first); }

  // Batches first..last, 1-based, as long as `goes_on` says so, between steps of training. What ranks get
  // that have the loss; nothing on others. Where batches are added up, each has the weight 1.
  std::optional<WeightedLoss> run(int64_t first, int64_t last, const std::function<bool()>& goes_on);

  // Another thread may call these meanwhile: "evaluation, step 3, rank 1, ..." (a step is a batch).
  std::string describeCurrent() const { return "evaluation, " + runner_->describeCurrent(); }
  ExecutorProgress progress() const { return runner_->progress(); }

 private:
  double weightOf(const StepReport& report, int64_t batch);

  EvaluationSpec spec_;
  const StepRunner& training_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<DataSource> data_;
};

}  // namespace pipeshard
