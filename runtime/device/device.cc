#include "runtime/device/device.h"

#include <cstring>

#include "ir/base/error.h"

namespace pipeshard {

HostView::HostView(DeviceQueue& queue, std::span<const std::byte> memory) : bytes_(memory) {
  queue.synchronize();
  if (queue.device().isHostMemory() || memory.empty()) return;
  copy_.resize(memory.size());
  queue.download(memory.data(), copy_.data(), memory.size());
  queue.synchronize();
  bytes_ = copy_;
}

void readMemory(DeviceQueue& queue, std::span<const std::byte> memory, std::span<std::byte> out) {
  PIPESHARD_CHECK(memory.size() == out.size(), "{} bytes into {}", memory.size(), out.size());
  queue.download(memory.data(), out.data(), memory.size());
  queue.synchronize();
}

void writeMemory(DeviceQueue& queue, std::span<std::byte> memory,
                 const std::function<void(std::span<std::byte>)>& fill) {
  queue.synchronize();
  if (queue.device().isHostMemory()) return fill(memory);
  std::vector<std::byte> content(memory.size());
  fill(content);
  queue.upload(content.data(), memory.data(), memory.size());
  queue.synchronize();
}

}  // namespace pipeshard
