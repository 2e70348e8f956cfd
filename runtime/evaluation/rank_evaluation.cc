#include "runtime/evaluation/rank_evaluation.h"

#include <algorithm>
#include <utility>

#include "ir/base/error.h"
#include "ir/base/ids_format.h"

namespace pipeshard {
namespace {

ExecutorOptions withoutChecks(ExecutorOptions options) {
  options.check_finite = false;
  options.find_nan = false;
  options.observer = nullptr;  // of training
  return options;
}

}  // namespace

RankEvaluation::RankEvaluation(const EvaluationSpec& spec, ProgramFolder& programs,
                               const StepRunner& training, ExecutorOptions options)
    : spec_(spec), training_(training) {
  const RankId rank = training.main().program().rank;
  runner_ = std::make_unique<StepRunner>(programs, rank, withoutChecks(std::move(options)));
  const Program& program = runner_->main().program();
  if (program.rank != rank || program.world_size != training.main().program().world_size) {
    fail(ErrorCode::kConfiguration, "{} holds a program of rank {} of {}, not of rank {} of {}; plan again",
         programs.folder(), program.rank, program.world_size, rank, training.main().program().world_size);
  }
  DataDescription data = spec_.data;
  data.end.last_batch = runner_->lastBatch();
  data_ = makeDataSource(data, program, runner_->shorterInputs());
}

size_t RankEvaluation::arenaBytes() const {
  return std::max(training_.arenaBytes(), runner_->guestBytes(training_));
}

void RankEvaluation::attach(std::span<std::byte> arena, Communicator* communicator,
                            Communicator* background) {
  runner_->attachAsGuest(training_, arena, communicator, data_.get(), background);
}

std::vector<TracedProgram> RankEvaluation::tracedPrograms() const {
  std::vector<TracedProgram> programs = runner_->tracedPrograms();
  for (TracedProgram& program : programs) program.evaluates = true;
  return programs;
}

double RankEvaluation::weightOf(const StepReport& report, int64_t batch) {
  if (spec_.adds) return 1;
  if (spec_.divisor.empty())
    return static_cast<double>(std::max<int64_t>(1, batchRows(runner_->executorOf(batch).program())));
  for (const auto& [name, measure] : report.measures) {
    if (name == spec_.divisor) return measure;
  }
  fail(ErrorCode::kConfiguration, "the evaluation's program does not give '{}'; plan again", spec_.divisor);
}

std::optional<WeightedLoss> RankEvaluation::run(int64_t first, int64_t last,
                                                const std::function<bool()>& goes_on) {
  std::optional<WeightedLoss> losses;
  for (int64_t batch = first; batch <= last && goes_on(); ++batch) {
    const StepReport report = runner_->runStep(batch);
    if (!report.loss) continue;
    if (!losses) losses.emplace();
    const double weight = weightOf(report, batch);
    if (weight > 0) losses->add(*report.loss, weight);  // a batch of ignored labels has no loss
  }
  return losses;
}

}  // namespace pipeshard
