// A rank's part of a checkpoint, written beside the steps that follow: the content is copied between two
// steps, and a thread writes the copy.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/save_shares.h"
#include "runtime/checkpoint/state_watch.h"
#include "runtime/device/aligned_memory.h"
#include "runtime/execute/executor.h"

namespace pipeshard {

// What became of it; `error` says why there is no file. Where a value is not finite there is none: nothing
// can be trained from it, and it must not take the place of an older one. `error` names the first such tensor
// and value, and says how many of its values there are.
struct SavedPart {
  int64_t step = 0;
  CheckpointFile file;
  std::string error;
  bool not_finite = false;
};

// Used by one thread. `saved` is called on the writing thread, or inside save().
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::function<void(const SavedPart&)> saved) : saved_(std::move(saved)) {}
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;
  ~CheckpointWriter() { finish(); }

  // Before the first step, if at all, and before `saved` may be called.
  void watch(const Executor& executor) { state_.look(executor); }
  const StateWatch& state() const { return state_; }
  // Copies these buffers as they are now, after `step`, and begins to write them into `folder`,
  // which is made where it is not there, durably. A value that is not finite (StateWatch::fault) ends it:
  // SavedPart::not_finite. Waits for the one before it, but no longer
  // than `patience`, as steps are waiting: then this one fails, and the disk is left to the other.
  void save(const Executor& executor, const std::vector<SavedBuffer>& buffers, int64_t step,
            const std::string& folder, std::chrono::milliseconds patience);
  // Waits for what is being written.
  void finish();

 private:
  bool isFreeWithin(std::chrono::milliseconds patience);

  std::function<void(const SavedPart&)> saved_;
  StateWatch state_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_writing_ = false;
  int64_t step_ = 0;  // that was begun last
  // Kept from one checkpoint to the next. Of the system's pages, as steps wait for the first copy: a vector
  // would be filled with zeros before.
  AlignedMemory copy_;
  std::thread thread_;
};

}  // namespace pipeshard
