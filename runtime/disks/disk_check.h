// Which files of a checkpoint a host lacks: those that its ranks go on from and that are not on its disk, and
// those that are there and not what was written, or cannot be read. On a thread of its own, as large files
// take long to read.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/disks/file_pieces.h"

namespace pipeshard {

class DiskCheck {
 public:
  enum class Content {
    kRead,
    kTrusted
  };  // of the files that ranks need: whoever sees the disk has read them

  // Begins. `needed`: indices into the checkpoint's files, ascending. Of the others that are there only the
  // size is looked at.
  DiskCheck(Checkpoint checkpoint, std::vector<int> needed, Content content);
  DiskCheck(const DiskCheck&) = delete;
  DiskCheck& operator=(const DiskCheck&) = delete;
  ~DiskCheck();  // stops it at the next block of a file

  bool isDone() const { return done_.load(); }
  const Checkpoint& checkpoint() const { return checkpoint_; }
  // When it is done.
  LackedFiles take();

 private:
  void look();

  const Checkpoint checkpoint_;
  const std::vector<int> needed_;
  const Content content_;
  LackedFiles lacked_;
  std::atomic<bool> stop_{false}, done_{false};
  std::thread thread_;  // last: started when all else is there
};

}  // namespace pipeshard
