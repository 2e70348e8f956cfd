#include "runtime/execute/worker_threads.h"

#include <omp.h>

#include <algorithm>
#include <thread>

namespace pipeshard {

int threadsPerWorker(int asked, int workers) {
  return asked > 0
             ? asked
             : std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, workers));
}

WorkerThreads::WorkerThreads(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
WorkerThreads::~WorkerThreads() { omp_set_num_threads(before_); }

}  // namespace pipeshard
