// What a library would share out among threads, on the calling thread alone.
#pragma once

#include <omp.h>

namespace pipeshard::kernels {

class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace pipeshard::kernels
