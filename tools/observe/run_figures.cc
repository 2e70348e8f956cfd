#include "tools/observe/run_figures.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "ir/plan/learning_rate.h"

namespace pipeshard {
namespace {

constexpr double kOfLate = 10;        // seconds
constexpr double kSampleEvery = 0.1;  // seconds

// Inputs that hold the ids of tokens, as docs/data.md names them.
bool holdsTokens(const ProgramInput& input) {
  static constexpr std::array<std::string_view, 4> kNames = {"input_ids", "tokens", "idx", "inputs"};
  return input.axis >= 0 && input.shape.size() == 2 && isInteger(input.data_type) &&
         std::find(kNames.begin(), kNames.end(), input.name) != kNames.end();
}

// `inputs`: of a program for such batches, of any rank.
BatchContents contentsOf(const std::vector<ProgramInput>& inputs) {
  BatchContents contents;
  for (const ProgramInput& input : inputs) {
    if (input.axis >= 0) contents.examples = std::max(contents.examples, input.shape.at(input.axis));
    if (holdsTokens(input)) contents.tokens = elementCount(input.shape);
  }
  return contents;
}

}  // namespace

RunFacts runFacts(const Plan& plan, ProgramFolder& folder, const JobSpec& job) {
  RunFacts facts;
  facts.steps = job.steps;
  for (const StepSize size : folder.sizes())
    facts.batches[size] = contentsOf(folder.program(RankId(0), size).inputs);
  facts.optimizer = plan.given.optimizer;
  facts.updates = plan.updates_per_step;
  facts.evaluated_every = job.evaluation.asked() ? job.evaluation.every_steps : 0;
  return facts;
}

void RunMeter::take(const JobProgress& event, Clock::time_point now) {
  if (event.kind == JobProgress::Kind::kStep) takeStep(event, now);
  if (event.kind == JobProgress::Kind::kEvaluated) takeEvaluation(event);
}

void RunMeter::takeStep(const JobProgress& event, Clock::time_point now) {
  if (start_ && event.step <= figures_.step) {  // the job began again
    start_.reset();
    samples_.clear();
  }
  if (!start_) {
    start_ = now;
    evaluating_ = 0;
    done_ = {};
    samples_.push_back({-event.seconds, event.step - 1, {}});
  }
  const double elapsed = std::chrono::duration<double>(now - *start_).count() - evaluating_;
  while (samples_.size() > 1 && samples_[1].seconds <= elapsed - kOfLate) samples_.pop_front();
  const Sample& oldest = samples_.front();
  RunFigures& figures = figures_;
  figures.step = event.step;
  figures.steps = facts_.steps;
  figures.loss = event.loss;
  figures.seconds = event.seconds;
  const auto rateOfLate = [&](int64_t now_done, int64_t before) {
    return static_cast<double>(now_done - before) / std::max(elapsed - oldest.seconds, 1e-9);
  };
  takeBatch(event.result == nullptr ? StepSize::kWholeBatch : event.result->size);
  figures.steps_per_second = rateOfLate(event.step, oldest.step);
  figures.examples_per_second = rateOfLate(done_.examples, oldest.done.examples);
  figures.tokens_per_second = rateOfLate(done_.tokens, oldest.done.tokens);
  if (elapsed - samples_.back().seconds >= kSampleEvery) samples_.push_back({elapsed, event.step, done_});
  figures.learning_rate.reset();
  if (facts_.optimizer.kind != OptimizerSpec::Kind::kNone)
    figures.learning_rate =
        scheduledRate(facts_.optimizer.schedule, facts_.optimizer.learning_rate, event.step * facts_.updates);
  figures.gradient_norm.reset();
  figures.loss_scale.reset();
  if (event.result != nullptr) {
    figures.resident_bytes = event.result->resident_bytes;
    figures.gradient_norm = event.result->measure("gradient_norm");
    figures.loss_scale = event.result->measure("loss_scale");
  }
  const int64_t left = std::max<int64_t>(0, facts_.steps - event.step);
  const int64_t evaluations = facts_.evaluated_every > 0 ? left / facts_.evaluated_every : 0;
  figures.seconds_left = static_cast<double>(left) / figures.steps_per_second +
                         static_cast<double>(evaluations) * last_evaluation_;
}

void RunMeter::takeBatch(StepSize size) {
  const auto found = facts_.batches.find(size);
  const BatchContents contents = found == facts_.batches.end() ? BatchContents{} : found->second;
  figures_.examples = contents.examples;
  figures_.tokens = contents.tokens;
  done_.examples += contents.examples;
  done_.tokens += contents.tokens;
}

void RunMeter::takeEvaluation(const JobProgress& event) {
  figures_.evaluation_loss = event.loss;
  figures_.evaluation_exact = event.exact;
  last_evaluation_ = event.seconds;
  evaluating_ += event.seconds;
}

std::string formatDuration(double seconds) {
  const int64_t whole = std::isfinite(seconds) ? std::llround(std::min(seconds, 1e12)) : 0;
  if (whole >= 86'400) return fmt::format("{}d {:02}h", whole / 86'400, whole / 3600 % 24);
  if (whole >= 3600) return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  return whole >= 60 ? fmt::format("{}m {:02}s", whole / 60, whole % 60) : fmt::format("{}s", whole);
}

std::string formatRate(double per_second) {
  static constexpr std::array<std::string_view, 4> kUnits = {"", "k", "M", "G"};
  size_t unit = 0;
  for (; per_second >= 999.5 && unit + 1 < kUnits.size(); ++unit) per_second /= 1000;
  if (unit == 0 && per_second < 1) return fmt::format("{:.2g}", per_second);
  return fmt::format("{:.{}f}{}", per_second,
                     per_second < 9.995   ? 2
                     : per_second < 99.95 ? 1
                                          : 0,
                     kUnits[unit]);
}

}  // namespace pipeshard
