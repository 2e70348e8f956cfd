// How long a device that works beside the host takes for each node: pairs of timed events, read when a step
// has ended. The host runs ahead, so that nodes follow each other as in a job. Internal to profiling.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/device.h"

namespace pipeshard {

class NodeEvents {
 public:
  void begin(DeviceQueue& queue, size_t place);
  void end(DeviceQueue& queue);
  // Each that has begun since the last call, with nanoseconds, at least 1. All are done.
  void take(const std::function<void(size_t place, int64_t ns)>& use);

 private:
  struct Pair {
    std::unique_ptr<DeviceEvent> begin, end;
    size_t place = 0;
    Device* device = nullptr;
  };
  std::vector<Pair> pairs_;
  size_t used_ = 0;
};

}  // namespace pipeshard
