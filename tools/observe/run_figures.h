// What people want to know of a run while it goes on, worked out once for the progress line, the log, event
// files and metrics.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/plan/plan.h"
#include "ir/program/step_size.h"
#include "runtime/execute/rank_image.h"
#include "runtime/job/job.h"

namespace pipeshard {

// What a step's batch has.
struct BatchContents {
  int64_t examples = 0;  // rows; 0: the model's batch cannot be told
  int64_t tokens = 0;    // with those that rows are padded with; 0: the model reads none
};

// What steps are made of.
struct RunFacts {
  int64_t steps = 1;                               // of the run, in all
  std::map<StepSize, BatchContents> batches = {};  // of every size of step that the plan has
  OptimizerSpec optimizer;                         // its rate goes by updates
  int64_t updates = 1;                             // of a step
  int64_t evaluated_every = 0;  // steps; 0: held-out data are evaluated at the end, or not at all
};
// `folder`: the plan's programs. Errors as ProgramFolder.
RunFacts runFacts(const Plan& plan, ProgramFolder& folder, const JobSpec& job);

struct RunFigures {
  int64_t step = 0;
  int64_t steps = 0;
  std::optional<double> loss = {};
  double seconds = 0;                        // of the step, on the slowest rank
  double steps_per_second = 0;               // of late: about ten seconds, without evaluations
  int64_t examples = 0;                      // of the step; 0: not known
  double examples_per_second = 0;            // of late; 0: likewise
  int64_t tokens = 0;                        // of the step; 0: the model reads none
  double tokens_per_second = 0;              // of late; 0: likewise
  std::optional<double> learning_rate = {};  // of the step's last update; nothing: nothing is trained
  std::optional<double> gradient_norm = {};  // where the plan has it
  std::optional<double> loss_scale = {};     // likewise: with which the step was made
  int64_t resident_bytes = 0;                // of the largest worker; 0: not looked at yet
  double seconds_left = 0;
  std::optional<double> evaluation_loss = {};  // the newest
  bool evaluation_exact = true;                // of that: EvaluationSpec::exact
};

// Keeps what one figure needs of those before it. Steps that are done again, after a loss, are as new ones.
class RunMeter {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RunMeter(RunFacts facts) : facts_(std::move(facts)) {}

  void take(const JobProgress& event, Clock::time_point now = Clock::now());

  const RunFigures& figures() const { return figures_; }
  const RunFacts& facts() const { return facts_; }

 private:
  void takeStep(const JobProgress& event, Clock::time_point now);
  void takeBatch(StepSize size);
  void takeEvaluation(const JobProgress& event);

  struct Sample {
    double seconds = 0;  // since the first step began, without evaluations
    int64_t step = 0;
    BatchContents done = {};  // so far, by all steps
  };

  RunFacts facts_;
  RunFigures figures_;
  std::optional<Clock::time_point> start_;
  double evaluating_ = 0;       // seconds, so far
  double last_evaluation_ = 0;  // seconds
  BatchContents done_;          // by all steps since the first
  std::deque<Sample> samples_;  // of the last ten seconds, and one before
};

// "3m 20s", "45s", "2h 05m".
std::string formatDuration(double seconds);
// "98.7", "12.3k", "4.56M": three digits.
std::string formatRate(double per_second);

}  // namespace pipeshard
