// What comes behind what on a device, so that no wait is made that orders nothing.
//
// Queues number their operations from 1. A *clock* stands for a moment: for each queue, the last operation
// that is ordered before it. Queues, events and the host have one:
//
//   call                      clocks (queues 1 and 2)
//   1 is given two kernels    queue 1: {1: 2}
//   1 records e               e: {1: 2}
//   2 is given a copy         queue 2: {2: 1}
//   2 waits for e             queue 2: {1: 2, 2: 1}
//   2 waits for e again       nothing: queue 2 covers e
//   the host waits for 2      host: {1: 2, 2: 1}
//   the host waits for 1      nothing: the host covers queue 1
//
// As a vector clock (Mattern 1989) whose processes are queues.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pipeshard {

class WorkClock {
 public:
  uint64_t of(size_t queue) const { return queue < last_.size() ? last_[queue] : 0; }
  void reach(size_t queue, uint64_t operation) {
    if (queue >= last_.size()) last_.resize(queue + 1);
    last_[queue] = std::max(last_[queue], operation);
  }
  void join(const WorkClock& other) {
    for (size_t queue = 0; queue < other.last_.size(); ++queue) reach(queue, other.last_[queue]);
  }
  bool covers(const WorkClock& other) const {
    for (size_t queue = 0; queue < other.last_.size(); ++queue) {
      if (other.last_[queue] > of(queue)) return false;
    }
    return true;
  }

 private:
  std::vector<uint64_t> last_;  // by queue
};

}  // namespace pipeshard
