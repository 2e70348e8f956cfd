#include "runtime/device/device.h"

#include <cstring>

#include "ir/base/error.h"

namespace pipeshard {

HostView::HostView(DeviceQueue& queue, std::span<const std::byte> memory) : bytes_(memory) {
  if (queue.device().isHostMemory() || memory.empty()) {
    queue.synchronize();
    return;
  }
  copy_.resize(memory.size());
  queue.download(memory.data(), copy_.data(), memory.size());  // waits, as it does into ordinary memory
  bytes_ = copy_;
}

void readMemory(DeviceQueue& queue, std::span<const std::byte> memory, std::span<std::byte> out) {
  PIPESHARD_CHECK(memory.size() == out.size(), "{} bytes into {}", memory.size(), out.size());
  queue.download(memory.data(), out.data(), memory.size());
}

void writeMemory(DeviceQueue& queue, std::span<std::byte> memory,
                 const std::function<void(std::span<std::byte>)>& fill) {
  if (queue.device().isHostMemory()) {
    queue.synchronize();
    return fill(memory);
  }
  std::vector<std::byte> content(memory.size());
  fill(content);
  queue.upload(content.data(), memory.data(), memory.size());
}

}  // namespace pipeshard
