// Both programs of a rank: that of whole batches, and that of the shorter batch that ends an epoch, if the
// plan has one. They share the arena; what lives across steps lies in the same place in both.
#pragma once

#include <memory>
#include <string>

#include "runtime/execute/executor.h"

namespace pipeshard {

// The size of the whole batch along the axis that is cut; 0: no input is cut.
int64_t batchRows(const Program& program);

class StepRunner {
 public:
  // Loads the rank's program of a folder (runtime/execute/rank_image.h), and that of the last batch if there
  // is one. Errors as ProgramFolder and Executor.
  StepRunner(const std::string& folder, RankId rank, const ExecutorOptions& options);

  // The executor of whole batches, whose program says what there is.
  const Executor& main() const { return *main_; }
  Executor& main() { return *main_; }
  size_t arenaBytes() const;
  int64_t constantBytes() const;
  // What a TraceRecorder is made of: whole batches, then the last one, if there is a program for it.
  std::vector<TracedProgram> tracedPrograms() const;
  // Of both programs (ir/program/background.h).
  std::vector<std::vector<RankId>> backgroundGroups() const;
  // Rows of the last batch; 0 if there is no program for one.
  int64_t lastBatch() const;

  // As Executor::attach. `data` decides which steps are short.
  void attach(std::span<std::byte> arena, Communicator* communicator, DataSource* data,
              Communicator* background = nullptr);
  // An evaluation's programs beside those of `host`, which is attached (Executor::attachAsGuest); the arena
  // is of guestBytes(host) at least.
  void attachAsGuest(const StepRunner& host, std::span<std::byte> arena, Communicator* communicator,
                     DataSource* data, Communicator* background = nullptr);
  size_t guestBytes(const StepRunner& host) const;
  // From the next step on.
  void record(TraceRecorder& recorder);
  StepReport runStep(int64_t step) { return executorOf(step).runStep(step); }
  Executor& executorOf(int64_t step) {
    return last_ && data_ != nullptr && data_->isLastBatch(step) ? *last_ : *main_;
  }
  // Another thread may call these meanwhile.
  std::string describeCurrent() const;
  ExecutorProgress progress() const;

 private:
  std::unique_ptr<Executor> main_;
  std::unique_ptr<Executor> last_;
  DataSource* data_ = nullptr;
};

}  // namespace pipeshard
