#include "runtime/execute/step_runner.h"

#include <algorithm>

namespace pipeshard {

int64_t batchRows(const Program& program) {
  for (const ProgramInput& input : program.inputs) {
    if (input.axis >= 0) return input.shape[input.axis];
  }
  return 0;
}

ShorterInputs shorterInputs(ProgramFolder& folder, RankId rank) {
  ShorterInputs shorter;
  for (const StepSize size : folder.sizes()) {
    if (size.length > 0) shorter.push_back(folder.program(rank, size).inputs);
  }
  return shorter;
}

StepRunner::StepRunner(ProgramFolder& programs, RankId rank, const ExecutorOptions& options)
    : sizes_(programs.sizes()) {
  ExecutorOptions of_size = options;
  for (const StepSize size : sizes_) {
    executors_.push_back(std::make_unique<Executor>(programs.takeImage(rank, size), of_size));
    of_size.observer = nullptr;
    if (size.length > 0) shorter_inputs_.push_back(executors_.back()->program().inputs);
  }
}

size_t StepRunner::arenaBytes() const {
  int64_t bytes = 0;
  for (const auto& executor : executors_) bytes = std::max(bytes, executor->memory().total_bytes);
  return bytes;
}

int64_t StepRunner::constantBytes() const {
  int64_t bytes = 0;
  for (const auto& executor : executors_) bytes += executor->constantBytes();
  return bytes;
}

int64_t StepRunner::lastBatch() const {
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i].last_batch) return batchRows(executors_[i]->program());
  }
  return 0;
}

std::vector<std::vector<RankId>> StepRunner::backgroundGroups() const {
  std::vector<std::vector<RankId>> groups;
  for (const auto& executor : executors_) {
    for (std::vector<RankId>& group : pipeshard::backgroundGroups(executor->program()))
      groups.push_back(std::move(group));
  }
  return groups;
}

void StepRunner::communicateBy(DeviceCommunicator& communicator,
                               std::map<StepSize, std::vector<CommunicationStep>> orders,
                               std::chrono::milliseconds timeout) {
  for (size_t i = 0; i < sizes_.size(); ++i)
    executors_[i]->communicateBy({&communicator, std::move(orders.at(sizes_[i])), timeout});
}

void StepRunner::attach(std::span<std::byte> arena, Communicator* communicator, DataSource* data,
                        Communicator* background) {
  data_ = data;
  for (const auto& executor : executors_) {
    if (executor == executors_.front()) {
      executor->attach(arena, communicator, data, background);
    } else {
      executor->attachBeside(main(), arena, communicator, data, background);
    }
  }
}

void StepRunner::attachAsGuest(const StepRunner& host, std::span<std::byte> arena, Communicator* communicator,
                               DataSource* data, Communicator* background) {
  data_ = data;
  for (const auto& executor : executors_)
    executor->attachAsGuest(host.main(), arena, communicator, data, background);
}

size_t StepRunner::guestBytes(const StepRunner& host) const {
  int64_t bytes = 0;
  for (const auto& executor : executors_) bytes = std::max(bytes, executor->guestBytes(host.main()));
  return bytes;
}

std::vector<TracedProgram> StepRunner::tracedPrograms() const {
  std::vector<TracedProgram> programs;
  for (const auto& executor : executors_)
    programs.push_back({&executor->program(), executor->memory().live_bytes});
  return programs;
}

void StepRunner::record(TraceRecorder& recorder, size_t first) {
  for (size_t i = 0; i < executors_.size(); ++i)
    executors_[i]->record(&recorder, static_cast<uint32_t>(first + i));
}

StepSize StepRunner::sizeOf(int64_t step) const {
  return data_ == nullptr || executors_.size() == 1 ? StepSize::kWholeBatch : data_->sizeOf(step);
}

Executor& StepRunner::executorOf(int64_t step) {
  const auto found = std::find(sizes_.begin(), sizes_.end(), sizeOf(step));
  return found == sizes_.end() ? main() : *executors_[found - sizes_.begin()];
}

std::string StepRunner::describeCurrent() const {
  std::string current = main().describeCurrent();
  for (const auto& executor : executors_) {
    if (!current.ends_with("between steps")) break;
    current = executor->describeCurrent();
  }
  return current;
}

ExecutorProgress StepRunner::progress() const {
  ExecutorProgress sum;
  for (const auto& executor : executors_) {
    const ExecutorProgress one = executor->progress();
    sum = {sum.count + one.count, sum.waiting || one.waiting, sum.running || one.running};
  }
  return sum;
}

}  // namespace pipeshard
