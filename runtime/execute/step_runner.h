// All programs of a rank: that of whole batches, and those of the other sizes that steps may have
// (ir/program/step_size.h), where the plan has some: the shorter batch that ends an epoch, batches of shorter
// sequences. They share the arena; what lives across steps lies in the same place in all.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir/program/step_size.h"
#include "runtime/execute/executor.h"

namespace pipeshard {

// The size of the whole batch along the axis that is cut; 0: no input is cut.
int64_t batchRows(const Program& program);

// What makeDataSource needs to know of shorter sequences: their programs' inputs. Errors as ProgramFolder.
ShorterInputs shorterInputs(ProgramFolder& folder, RankId rank);

class StepRunner {
 public:
  // Loads the rank's programs of a folder (runtime/execute/rank_image.h). An observer is told of whole
  // batches alone. Errors as ProgramFolder and Executor.
  StepRunner(ProgramFolder& programs, RankId rank, const ExecutorOptions& options);

  // The executor of whole batches, whose program says what there is.
  const Executor& main() const { return *executors_.front(); }
  Executor& main() { return *executors_.front(); }
  size_t arenaBytes() const;
  int64_t constantBytes() const;
  // What a TraceRecorder is made of: in the order of ProgramFolder::sizes.
  std::vector<TracedProgram> tracedPrograms() const;
  // Of all programs (ir/program/background.h).
  std::vector<std::vector<RankId>> backgroundGroups() const;
  // Rows of the last batch; 0 if there is no program for one.
  int64_t lastBatch() const;
  const ShorterInputs& shorterInputs() const { return shorter_inputs_; }

  // As Executor::communicateBy; `orders`: of every size that there is.
  void communicateBy(DeviceCommunicator& communicator,
                     std::map<StepSize, std::vector<CommunicationStep>> orders,
                     std::chrono::milliseconds timeout);
  // As Executor::attach. `data` decides which step is of which size.
  void attach(std::span<std::byte> arena, Communicator* communicator, DataSource* data,
              Communicator* background = nullptr);
  // An evaluation's programs beside those of `host`, which is attached (Executor::attachAsGuest); the arena
  // is of guestBytes(host) at least.
  void attachAsGuest(const StepRunner& host, std::span<std::byte> arena, Communicator* communicator,
                     DataSource* data, Communicator* background = nullptr);
  size_t guestBytes(const StepRunner& host) const;
  // From the next step on. `first`: the place of tracedPrograms() among those of the recorder.
  void record(TraceRecorder& recorder, size_t first = 0);
  StepReport runStep(int64_t step) { return executorOf(step).runStep(step); }
  Executor& executorOf(int64_t step);
  StepSize sizeOf(int64_t step) const;
  // Another thread may call these meanwhile.
  std::string describeCurrent() const;
  ExecutorProgress progress() const;

 private:
  std::vector<StepSize> sizes_;  // the first: whole batches
  std::vector<std::unique_ptr<Executor>> executors_;
  ShorterInputs shorter_inputs_;
  DataSource* data_ = nullptr;
};

}  // namespace pipeshard
