// How many threads a worker computes with, and making kernels as it would.
//
// Kernels take workspace for so many threads when they are created (some convolutions), so a rank's arena
// depends on them: whoever wants to know a worker's memory creates its kernels with its threads.
//
//   const WorkerThreads threads(threadsPerWorker(0, 2));   // of two workers here, as `run` starts them
//   Executor executor(image, {});                          // executor.memory(): what each of them allocates
#pragma once

namespace pipeshard {

// Of each of the `workers` of a node: what was asked for; 0: the processors divided by the workers, at least
// 1.
int threadsPerWorker(int asked, int workers);

// While it lives, what this thread creates and runs is for so many threads.
class WorkerThreads {
 public:
  explicit WorkerThreads(int threads);
  WorkerThreads(const WorkerThreads&) = delete;
  WorkerThreads& operator=(const WorkerThreads&) = delete;
  ~WorkerThreads();

 private:
  int before_;
};

}  // namespace pipeshard
