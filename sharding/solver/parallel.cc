#include "sharding/solver/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace pipeshard::solver {

void parallelFor(int threads, int32_t count, const std::function<void(int32_t)>& body) {
  std::atomic<int32_t> next{0};
  std::vector<std::exception_ptr> errors(count);
  const auto work = [&] {
    for (int32_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        errors[i] = std::current_exception();
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

}  // namespace pipeshard::solver
