// A GPU as a device.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/cuda/work_clock.h"
#include "runtime/device/device.h"
#include "runtime/device/device_communicator.h"

namespace pipeshard {

inline constexpr size_t kZeroing = 0;  // the number of the queue that makes memory zero

class CudaDevice : public Device {
 public:
  // By its number among the devices that CUDA_VISIBLE_DEVICES leaves; `shared`: counted round where there are
  // fewer. Error(kConfiguration) when there is no driver, no such device, or none that can be used: what was
  // looked for, and found.
  CudaDevice(int number, bool shared);
  ~CudaDevice() override;

  std::string name() const override { return name_; }  // "cuda:0 (NVIDIA H100 PCIe)"
  const KernelRegistry& kernels() const override;
  std::string libraries() const override;
  std::string comparedLibrary() const override;
  int64_t alignment() const override;
  bool isHostMemory() const override { return false; }
  MemoryBlock allocate(size_t bytes) override;
  int64_t peakBytes() const override { return held_->most; }
  MemoryBlock allocateHost(size_t bytes) override;
  std::unique_ptr<DeviceQueue> makeQueue() override;
  std::unique_ptr<DeviceEvent> makeEvent() override;
  std::unique_ptr<DeviceEvent> makeTimedEvent() override;
  std::chrono::nanoseconds between(const DeviceEvent& from, const DeviceEvent& to) override;

  bool isLost() const override;
  bool hasHappened(const DeviceEvent& event) override;
  void watchWaits(std::function<void()> watch) override { watch_ = std::move(watch); }
  std::string place() const override { return place_; }
  DeviceNetwork* network() override { return network_.get(); }
  DeviceNetwork* nearNetwork() override { return near_network_.get(); }

  // The host waits for all work of the stream.
  void await(cudaStream_t stream) const;
  // What one call of allocate gave: `number` from 1, of no other.
  struct Allocation {
    std::byte* begin = nullptr;
    size_t bytes = 0;
    uint64_t number = 0;
  };
  // In which the address lies; number 0: in none.
  Allocation allocationOf(const void* address) const;
  // Of allocateHost.
  bool isPinned(const void* address) const;
  // The calling thread's calls of the runtime mean this device from now on.
  void use() const;
  // Allocations so far. Their memory is made zero on a stream of the device's own, and the host does not
  // wait.
  uint64_t allocations() const { return allocations_; }
  // What is given to the stream from now on comes behind the zeros of all of them. Returns allocations(): in
  // clocks they are the operations of queue kZeroing.
  uint64_t waitForZeros(cudaStream_t stream) const;

  // The host's clock: what it has waited for, whichever of its threads. Any thread may call these.
  void joinHost(WorkClock& clock) const;
  bool isHostBehind(const WorkClock& clock) const;
  void hostHasWaitedFor(const WorkClock& clock);
  // For one that is new, from 1.
  size_t numberQueue();
  // Pinned memory through which a queue hands over what lies elsewhere; given back when the queue ends.
  MemoryBlock takePassage();
  void givePassage(MemoryBlock passage);

 private:
  // Of the device's memory, for whoever gives it back.
  struct Held {
    std::atomic<int64_t> now = 0, most = 0;
    std::mutex mutex;
    std::map<const std::byte*, Allocation> blocks;  // by beginning
  };

  int number_;
  std::string name_, place_;
  std::shared_ptr<Held> held_ = std::make_shared<Held>();
  std::function<void()> watch_;
  std::unique_ptr<DeviceNetwork> network_;  // nullptr: it was built without
  std::unique_ptr<DeviceNetwork> near_network_;
  struct Pinned {
    std::mutex mutex;
    std::map<const std::byte*, size_t> bytes;  // by beginning
  };
  std::shared_ptr<Pinned> pinned_ = std::make_shared<Pinned>();  // also of blocks that outlive the device
  // Memory that is made zero: the stream, and the end of what it was given.
  cudaStream_t zeroing_ = nullptr;
  cudaEvent_t zeroed_ = nullptr;
  mutable std::mutex zeros_;
  std::atomic<uint64_t> allocations_ = 0;
  mutable std::mutex host_;
  WorkClock host_clock_;  // guarded, like the next
  size_t queues_ = 0;
  std::vector<MemoryBlock> passages_;  // that no queue has
};

}  // namespace pipeshard
