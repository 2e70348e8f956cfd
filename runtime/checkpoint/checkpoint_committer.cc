#include "runtime/checkpoint/checkpoint_committer.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ir/base/error.h"

namespace pipeshard {

CheckpointCommitter::CheckpointCommitter(CheckpointFolder& folder)
    : folder_(folder), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_.valid()) fail(ErrorCode::kOutOfMemory, "cannot make an eventfd: {}", std::strerror(errno));
}

CheckpointCommitter::~CheckpointCommitter() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CheckpointCommitter::commit(Checkpoint checkpoint) { add({std::move(checkpoint), ""}); }

void CheckpointCommitter::discard(int64_t step, std::string error) {
  Task task{{}, std::move(error)};
  task.checkpoint.step = step;
  add(std::move(task));
}

void CheckpointCommitter::add(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
}

std::vector<CheckpointCommitter::Outcome> CheckpointCommitter::take() {
  const std::lock_guard lock(mutex_);
  uint64_t count = 0;
  if (::read(event_.get(), &count, sizeof count) < 0 && errno != EAGAIN)
    fail(ErrorCode::kInternal, "eventfd: {}", std::strerror(errno));
  return std::exchange(outcomes_, {});
}

void CheckpointCommitter::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    Outcome outcome = perform(std::move(task));
    lock.lock();
    outcomes_.push_back(std::move(outcome));
    const uint64_t one = 1;
    if (::write(event_.get(), &one, sizeof one) < 0) {
      // The counter is at its limit: it is readable already.
    }
  }
}

CheckpointCommitter::Outcome CheckpointCommitter::perform(Task task) {
  Outcome outcome;
  outcome.step = task.checkpoint.step;
  outcome.error = std::move(task.error);
  if (!outcome.error.empty()) {
    folder_.discard(outcome.step);
    return outcome;
  }
  try {
    outcome.checkpoint = folder_.commit(
        std::move(task.checkpoint), [&](const std::string& notice) { outcome.notices.push_back(notice); });
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

}  // namespace pipeshard
