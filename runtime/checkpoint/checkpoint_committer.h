// Makes checkpoints of what ranks have written, on a thread of its own: a disk may take seconds for it, in
// which the coordinator must go on hearing ranks and nodes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/files/posix_file.h"

namespace pipeshard {

// Used by one thread.
class CheckpointCommitter {
 public:
  struct Outcome {
    int64_t step = 0;
    std::optional<Checkpoint> checkpoint;  // nothing: `error` says why there is none
    std::string error;
    std::vector<std::string> notices;  // of a checkpoint that is there: what could not be done beside it
  };

  // From now on the folder is the thread's. Error(kOutOfMemory) where the system has no event for it.
  explicit CheckpointCommitter(CheckpointFolder& folder);
  CheckpointCommitter(const CheckpointCommitter&) = delete;
  CheckpointCommitter& operator=(const CheckpointCommitter&) = delete;
  ~CheckpointCommitter();  // what it was given is done before

  // As CheckpointFolder::commit, in the order of the calls.
  void commit(Checkpoint checkpoint);
  // A rank has failed, as `error` says: what the others have written is removed.
  void discard(int64_t step, std::string error);

  // Readable as long as take() has something to give.
  int descriptor() const { return event_.get(); }
  std::vector<Outcome> take();

 private:
  struct Task {
    Checkpoint checkpoint;
    std::string error;  // "": to be committed
  };
  void add(Task task);
  void serve();
  Outcome perform(Task task);

  CheckpointFolder& folder_;
  Descriptor event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::vector<Outcome> outcomes_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace pipeshard
