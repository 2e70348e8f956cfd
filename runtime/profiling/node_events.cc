#include "runtime/profiling/node_events.h"

#include <algorithm>

namespace pipeshard {

void NodeEvents::begin(DeviceQueue& queue, size_t place) {
  if (used_ == pairs_.size())
    pairs_.push_back({queue.device().makeTimedEvent(), queue.device().makeTimedEvent()});
  Pair& pair = pairs_[used_++];
  pair.place = place;
  pair.device = &queue.device();
  queue.record(*pair.begin);
}

void NodeEvents::end(DeviceQueue& queue) { queue.record(*pairs_[used_ - 1].end); }

void NodeEvents::take(const std::function<void(size_t place, int64_t ns)>& use) {
  for (size_t i = 0; i < used_; ++i) {
    const Pair& pair = pairs_[i];
    use(pair.place, std::max<int64_t>(1, pair.device->between(*pair.begin, *pair.end).count()));
  }
  used_ = 0;
}

}  // namespace pipeshard
