// One rank of a plan, alone: its program runs as in a job, on memory of the same kind, but nobody is there to
// send to or receive from. So an operator that is measured here finds in caches what a step of a job leaves
// there. Internal to profiling.
//
//   StandaloneRank rank(image, options);
//   rank.runStep();            // all of a step
//
// Weights are random instead of read (spread so that activations keep their size), batches are random once
// and copied from memory, received tensors are random bytes of the right kind, sums over ranks are the own
// part. No number means anything; none is so small that it would slow down arithmetic.
#pragma once

#include <memory>

#include "runtime/execute/executor.h"
#include "runtime/execute/rank_image.h"
#include "transport/shared/shared_memory.h"

namespace pipeshard {

class StandaloneRank {
 public:
  // Errors: as Executor's constructor and attach; kOutOfMemory.
  StandaloneRank(RankImage image, const ExecutorOptions& options);
  ~StandaloneRank();

  const Program& program() const { return executor_.program(); }
  void runStep();

 private:
  void fillPersistent();

  MemoryBlock device_memory_;  // the arena of a device whose memory is not the host's; gone last
  Executor executor_;
  std::unique_ptr<SharedMemoryCommunicator> memory_;  // else the arena's, as a worker's
  std::unique_ptr<Communicator> peers_, background_peers_;
  std::unique_ptr<DataSource> data_;
  int64_t step_ = 0;
};

}  // namespace pipeshard
