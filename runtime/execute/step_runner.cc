#include "runtime/execute/step_runner.h"

#include <algorithm>

namespace pipeshard {

int64_t batchRows(const Program& program) {
  for (const ProgramInput& input : program.inputs) {
    if (input.axis >= 0) return input.shape[input.axis];
  }
  return 0;
}

StepRunner::StepRunner(const std::string& folder, RankId rank, const ExecutorOptions& options) {
  ProgramFolder programs(folder);
  main_ = std::make_unique<Executor>(programs.image(rank), options);
  if (programs.hasLastBatch())
    last_ = std::make_unique<Executor>(programs.image(rank, StepSize::kLastBatch), options);
}

size_t StepRunner::arenaBytes() const {
  return std::max(main_->memory().total_bytes, last_ ? last_->memory().total_bytes : 0);
}

int64_t StepRunner::constantBytes() const {
  return main_->constantBytes() + (last_ ? last_->constantBytes() : 0);
}

int64_t StepRunner::lastBatch() const { return last_ ? batchRows(last_->program()) : 0; }

std::vector<std::vector<RankId>> StepRunner::backgroundGroups() const {
  std::vector<std::vector<RankId>> groups = pipeshard::backgroundGroups(main_->program());
  if (!last_) return groups;
  for (std::vector<RankId>& group : pipeshard::backgroundGroups(last_->program()))
    groups.push_back(std::move(group));
  return groups;
}

void StepRunner::attach(std::span<std::byte> arena, Communicator* communicator, DataSource* data,
                        Communicator* background) {
  data_ = data;
  main_->attach(arena, communicator, data, background);
  if (last_) last_->attachBeside(*main_, arena, communicator, data, background);
}

void StepRunner::attachAsGuest(const StepRunner& host, std::span<std::byte> arena, Communicator* communicator,
                               DataSource* data, Communicator* background) {
  data_ = data;
  main_->attachAsGuest(*host.main_, arena, communicator, data, background);
  if (last_) last_->attachAsGuest(*host.main_, arena, communicator, data, background);
}

size_t StepRunner::guestBytes(const StepRunner& host) const {
  return std::max(main_->guestBytes(*host.main_), last_ ? last_->guestBytes(*host.main_) : 0);
}

std::vector<TracedProgram> StepRunner::tracedPrograms() const {
  std::vector<TracedProgram> programs{{&main_->program(), main_->liveBytes()}};
  if (last_) programs.push_back({&last_->program(), last_->liveBytes()});
  return programs;
}

void StepRunner::record(TraceRecorder& recorder) {
  main_->record(&recorder, 0);
  if (last_) last_->record(&recorder, 1);
}

std::string StepRunner::describeCurrent() const {
  const std::string current = main_->describeCurrent();
  return last_ && current.ends_with("between steps") ? last_->describeCurrent() : current;
}

ExecutorProgress StepRunner::progress() const {
  ExecutorProgress sum = main_->progress();
  if (!last_) return sum;
  const ExecutorProgress last = last_->progress();
  return {sum.count + last.count, sum.waiting || last.waiting, sum.running || last.running};
}

}  // namespace pipeshard
