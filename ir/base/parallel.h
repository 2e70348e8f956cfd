// A loop over threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include <sched.h>

namespace pipeshard {

// That the calling thread may use, which are fewer than the machine's under taskset, say: what work on whole
// plans takes, whose result does not depend on it.
inline int processorCount() {
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof(usable), &usable) == 0) return std::max(1, CPU_COUNT(&usable));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Calls body(0), ..., body(count - 1), on up to `threads` threads, the caller's among them; they begin in
// this order. Once one has thrown no other begins. The first error by index is thrown at the end.
inline void parallelFor(int threads, int32_t count, const std::function<void(int32_t)>& body) {
  std::atomic<int32_t> next{0}, end{count};
  std::vector<std::exception_ptr> errors(count);
  const auto work = [&] {
    for (int32_t i = next++; i < end; i = next++) {
      try {
        body(i);
      } catch (...) {
        errors[i] = std::current_exception();
        end = 0;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < std::min(threads, count); ++i) others.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace pipeshard
