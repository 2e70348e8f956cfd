// The second thread of a rank: it does the background collectives of a step (ir/program/background.h), one at
// a time in their order, beside the thread that runs the step.
//
//   BackgroundLane lane([&](size_t k) { ... });   // how to do the lane's instruction k of a step
//   lane.begin();                                 // a step: nothing is posted, nothing is done
//   lane.post();  ...  lane.post();               // the next one may be done
//   lane.waitFor(2, ...);                         // both are done
//
// Thread rules: all calls by one thread, which must not destroy the lane, or let go of what its work uses,
// before the lane is idle; but done() and hasFailed() are for any.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "ir/base/error.h"

namespace pipeshard {

class BackgroundLane {
 public:
  // Starts the thread. After the first Error that `work` throws nothing more is done; `on_failure` is called
  // then, by the thread.
  BackgroundLane(std::function<void(size_t)> work, std::function<void()> on_failure);
  // Waits until it is idle.
  ~BackgroundLane();
  BackgroundLane(const BackgroundLane&) = delete;
  BackgroundLane& operator=(const BackgroundLane&) = delete;

  void begin();
  void post();
  // Returns when `count` of those posted since begin() are done. Meanwhile calls `progress` (which returns
  // true when it is to be called again soon), for the sends of the caller. Throws the error that ended the
  // lane's work.
  void waitFor(size_t count, const std::function<bool()>& progress);
  // Returns when nothing is under way, without a throw: all that was posted is done, or something has failed.
  void settle();

  size_t done() const { return done_.load(std::memory_order_acquire); }
  // Seconds at work since begin(); meaningful when idle.
  double seconds() const { return seconds_; }
  // The error that ended its work; nothing so far: nothing.
  std::optional<Error> failure() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  void run();
  void perform(Lock& lock);

  std::function<void(size_t)> work_;
  std::function<void()> on_failure_;
  mutable std::mutex mutex_;
  std::condition_variable posted_changed_, done_changed_;
  size_t posted_ = 0;            // guarded, like all below
  std::atomic<size_t> done_{0};  // written under the mutex
  bool busy_ = false;
  bool closing_ = false;
  double seconds_ = 0;
  std::optional<Error> failure_;
  std::thread thread_;  // last: started when all else is there
};

}  // namespace pipeshard
