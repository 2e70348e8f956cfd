// How far an emission is that several threads work at, and how it is ended. Internal to partition/emit/.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace pipeshard {

// Whoever asked for the work is told on the thread that made this, and no other. What he throws then ends the
// work: every thread throws it when it comes here next.
class EmissionProgress {
 public:
  // `progress`: as emitProgramSet; may be empty.
  explicit EmissionProgress(const std::function<void(double)>& progress) : progress_(progress) {}

  // `share` of the whole work is done.
  void tell(double share) {
    if (ended_) throwEnd();
    if (!progress_ || std::this_thread::get_id() != teller_) return;
    try {
      progress_(share);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      end_ = std::current_exception();
      ended_ = true;
      throw;
    }
  }

 private:
  [[noreturn]] void throwEnd() {
    const std::lock_guard lock(mutex_);
    std::rethrow_exception(end_);
  }

  const std::function<void(double)>& progress_;
  const std::thread::id teller_ = std::this_thread::get_id();
  std::atomic<bool> ended_ = false;
  std::mutex mutex_;
  std::exception_ptr end_;
};

}  // namespace pipeshard
