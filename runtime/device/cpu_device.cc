#include "runtime/device/cpu_device.h"

#include <cstring>
#include <utility>

#include "runtime/device/aligned_memory.h"
#include "runtime/device/elementwise_add.h"
#include "runtime/kernels/base/cpu_kernels.h"

namespace pipeshard {
namespace {

struct TimedCpuEvent : DeviceEvent {
  std::chrono::steady_clock::time_point time;
};

class CpuQueue : public DeviceQueue {
 public:
  explicit CpuQueue(Device& device) : device_(device) {}

  Device& device() const override { return device_; }
  void upload(const std::byte* from, std::byte* to, size_t bytes) override { copy(from, to, bytes); }
  void download(const std::byte* from, std::byte* to, size_t bytes) override { copy(from, to, bytes); }
  void copy(const void* from, void* to, size_t bytes) override {
    if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
  }
  void copyRows(const RowCopy& rows) override { rows.run(); }
  void zero(void* to, size_t bytes) override {
    if (bytes > 0) std::memset(to, 0, bytes);
  }
  void add(DataType type, const void* part, void* total, size_t count) override {
    addElements(type, part, total, count);
  }
  void record(DeviceEvent& event) override {
    if (auto* timed = dynamic_cast<TimedCpuEvent*>(&event)) timed->time = std::chrono::steady_clock::now();
  }
  void wait(const DeviceEvent&) override {}
  void synchronize() override {}

 private:
  Device& device_;
};

class CpuDevice : public Device {
 public:
  std::string name() const override { return "cpu"; }
  const KernelRegistry& kernels() const override { return cpuKernels(); }
  int64_t alignment() const override { return kMemoryAlignment; }
  bool isHostMemory() const override { return true; }
  MemoryBlock allocate(size_t bytes) override {
    auto memory = std::make_shared<AlignedMemory>(bytes);
    return {memory->bytes(), std::move(memory)};
  }
  MemoryBlock allocateHost(size_t bytes) override { return allocate(bytes); }
  std::unique_ptr<DeviceQueue> makeQueue() override { return std::make_unique<CpuQueue>(*this); }
  std::unique_ptr<DeviceEvent> makeEvent() override { return std::make_unique<DeviceEvent>(); }
  std::unique_ptr<DeviceEvent> makeTimedEvent() override { return std::make_unique<TimedCpuEvent>(); }
  std::chrono::nanoseconds between(const DeviceEvent& from, const DeviceEvent& to) override {
    return dynamic_cast<const TimedCpuEvent&>(to).time - dynamic_cast<const TimedCpuEvent&>(from).time;
  }
};

}  // namespace

Device& cpuDevice() {
  static CpuDevice device;
  return device;
}

}  // namespace pipeshard
