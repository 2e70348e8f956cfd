#include "runtime/execute/background_lane.h"

#include <signal.h>

#include <chrono>
#include <exception>
#include <new>
#include <utility>

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

// How often a wait serves sends that still need calls.
constexpr std::chrono::microseconds kProgressSlice{200};

// Signals are for the process's first thread.
std::thread startWithoutSignals(const std::function<void()>& body) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(body);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

BackgroundLane::BackgroundLane(std::function<void(size_t)> work, std::function<void()> on_failure)
    : work_(std::move(work)), on_failure_(std::move(on_failure)) {
  thread_ = startWithoutSignals([this] { run(); });
}

BackgroundLane::~BackgroundLane() {
  {
    const Lock lock(mutex_);
    closing_ = true;
    posted_changed_.notify_all();
  }
  thread_.join();
}

void BackgroundLane::begin() {
  const Lock lock(mutex_);
  PIPESHARD_CHECK(!busy_ && (failure_ || done_ == posted_), "a step begins while {} of {} are done",
                  done_.load(), posted_);
  posted_ = 0;
  done_.store(0, std::memory_order_release);
  seconds_ = 0;
}

void BackgroundLane::post() {
  const Lock lock(mutex_);
  ++posted_;
  posted_changed_.notify_one();
}

void BackgroundLane::waitFor(size_t count, const std::function<bool()>& progress) {
  if (done() >= count) return;
  Lock lock(mutex_);
  PIPESHARD_CHECK(count <= posted_, "{} are awaited, {} are posted", count, posted_);
  const auto ready = [&] { return done_ >= count || failure_; };
  while (!ready()) {
    lock.unlock();
    const bool again = progress && progress();
    lock.lock();
    again ? done_changed_.wait_for(lock, kProgressSlice, ready) : (done_changed_.wait(lock, ready), true);
  }
  if (done_ < count) throw Error(*failure_);
}

void BackgroundLane::settle() {
  Lock lock(mutex_);
  done_changed_.wait(lock, [&] { return !busy_ && (done_ == posted_ || failure_); });
}

std::optional<Error> BackgroundLane::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

void BackgroundLane::run() {
  Lock lock(mutex_);
  while (true) {
    posted_changed_.wait(lock, [&] { return closing_ || (done_ < posted_ && !failure_); });
    if (closing_) return;
    perform(lock);
  }
}

void BackgroundLane::perform(Lock& lock) {
  busy_ = true;
  lock.unlock();
  const Clock::time_point start = Clock::now();
  std::optional<Error> error;
  try {
    work_(done());
  } catch (const Error& thrown) {
    error = thrown;
  } catch (const std::bad_alloc&) {
    error = Error(ErrorCode::kOutOfMemory, "out of memory");
  } catch (const std::exception& thrown) {
    error = Error(ErrorCode::kInternal, thrown.what());
  }
  lock.lock();
  seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  if (error) {
    failure_ = std::move(error);
    if (on_failure_) on_failure_();
  } else {
    done_.fetch_add(1, std::memory_order_acq_rel);
  }
  busy_ = false;
  done_changed_.notify_all();
}

}  // namespace pipeshard
