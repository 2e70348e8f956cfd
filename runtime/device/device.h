// What a rank computes on: memory, queues of work, events between queues, and kernels. Whoever runs a Program
// touches its tensors through this alone, so that they may lie where the host cannot read them, and work may
// go on while the host does something else. The CPU is one implementation (cpu_device.h): its memory is the
// host's, and work is done when it is asked for.
//
//   Device& device = cpuDevice();
//   const MemoryBlock arena = device.allocate(bytes);
//   const auto compute = device.makeQueue();
//   const auto loaded = device.makeEvent();
//   transfers->upload(host, arena.bytes.data(), 4096);
//   transfers->record(*loaded);
//   compute->wait(*loaded);               // what follows on this queue begins behind the upload
//   kernel->run({inputs, outputs, workspace, nullptr, 0, compute.get()});
//   compute->synchronize();               // the host waits
//
// Thread rules: one thread uses a queue at a time; an event is recorded by one thread, and awaited by others
// only when they have learned of it from that one. A device may be used by all threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/base/data_type.h"
#include "runtime/device/row_copy.h"
#include "runtime/kernels/base/kernel.h"

namespace pipeshard {

class DeviceNetwork;  // runtime/device/device_communicator.h
class DeviceQueue;

// Memory that is given back with the last copy of this.
struct MemoryBlock {
  std::span<std::byte> bytes;
  std::shared_ptr<void> owner;
};

// A moment in the work of a queue.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;  // "cpu"
  virtual const KernelRegistry& kernels() const = 0;
  // What does the work of the kernels made so far, where that depends on the machine: "cuDNN 9.19.0".
  virtual std::string libraries() const { return ""; }
  // What of it all ranks of a job must have alike: "cuDNN 9.19.0", "no cuDNN"; "": it does no work of theirs.
  virtual std::string comparedLibrary() const { return ""; }
  // Of buffers and workspaces in an arena, bytes: a power of two.
  virtual int64_t alignment() const = 0;
  // The host may read and write this device's memory where it lies, once the work on it is done.
  virtual bool isHostMemory() const = 0;
  // Zeroed; the address is a multiple of the alignment. Error(kOutOfMemory) naming the bytes.
  virtual MemoryBlock allocate(size_t bytes) = 0;
  // What allocate has given and was not given back, at most so far; 0: it is not counted.
  virtual int64_t peakBytes() const { return 0; }
  // The host's memory, zeroed: that from which uploads, and into which downloads, go on beside the host.
  virtual MemoryBlock allocateHost(size_t bytes) = 0;
  virtual std::unique_ptr<DeviceQueue> makeQueue() = 0;
  virtual std::unique_ptr<DeviceEvent> makeEvent() = 0;
  // One that keeps when it happened.
  virtual std::unique_ptr<DeviceEvent> makeTimedEvent() = 0;
  // It has failed, as hardware does: what it holds is gone, and this process cannot use it any more.
  virtual bool isLost() const { return false; }
  // From one timed event to another, of any queues; both have happened, and the host has waited for them.
  virtual std::chrono::nanoseconds between(const DeviceEvent& from, const DeviceEvent& to) = 0;
  // Of an event that was recorded; nobody waits.
  virtual bool hasHappened(const DeviceEvent&) { return true; }
  // While the host waits for work on this device, `watch` is called now and then, by the thread that waits;
  // what it throws ends the wait, not the work. {}: no more. Not while somebody waits.
  virtual void watchWaits(std::function<void()> /*watch*/) {}

  // Which one it is: the same text in all processes that have it, and in no others. "": the host itself.
  virtual std::string place() const { return ""; }
  // How ranks that have such devices reach each other without the host; nullptr: not at all.
  virtual DeviceNetwork* network() { return nullptr; }
  // Likewise ranks of one machine, of which several may have one device. Where it does not work there, meet()
  // is Error(kConfiguration) with one text on all ranks.
  virtual DeviceNetwork* nearNetwork() { return nullptr; }
};

// Work that is done in the order of the calls. Addresses are the device's, and those of the host where that
// is said. Memory that work reads or writes is left alone until it is done. Sizes may be 0. Errors
// (kInternal, kOutOfMemory; kPeerUnavailable: it is lost) come from the call that caused them or a later one.
class DeviceQueue {
 public:
  DeviceQueue() = default;
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;
  // Waits until nothing is under way.
  virtual ~DeviceQueue() = default;

  virtual Device& device() const = 0;

  // `from` is the host's. Unless it is of allocateHost, the call waits until it may be changed again.
  virtual void upload(const std::byte* from, std::byte* to, size_t bytes) = 0;
  // `to` is the host's. Unless it is of allocateHost, the call waits until it is there.
  virtual void download(const std::byte* from, std::byte* to, size_t bytes) = 0;
  // The two are apart, or the same.
  virtual void copy(const void* from, void* to, size_t bytes) = 0;
  virtual void copyRows(const RowCopy& rows) = 0;
  virtual void zero(void* to, size_t bytes) = 0;
  // total[i] += part[i], to the same bits on every device. float32, float64, int32, int64; Error(kBadModel)
  // for other types.
  virtual void add(DataType type, const void* part, void* total, size_t count) = 0;

  // From now on the event is the end of all work that this queue was given before.
  virtual void record(DeviceEvent& event) = 0;
  // Work that follows begins when the event has happened; one that was never recorded has.
  virtual void wait(const DeviceEvent& event) = 0;
  // The host waits until all work is done.
  virtual void synchronize() = 0;
};

// What device memory holds when the queue has done all that it was given: the memory itself where the host
// can read it, else a copy. The memory outlives it, and is not changed meanwhile.
class HostView {
 public:
  HostView(DeviceQueue& queue, std::span<const std::byte> memory);
  HostView(const HostView&) = delete;
  HostView& operator=(const HostView&) = delete;
  HostView(HostView&&) = default;
  HostView& operator=(HostView&&) = default;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::byte* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<std::byte> copy_;
  std::span<const std::byte> bytes_;
};

// The same into `out`, which is as large, and not of allocateHost.
void readMemory(DeviceQueue& queue, std::span<const std::byte> memory, std::span<std::byte> out);

// Sets device memory to what `fill` writes: all bytes of what it is given, whose content is undefined before.
// It is there for what the queue does next; for others, when it has been waited for.
void writeMemory(DeviceQueue& queue, std::span<std::byte> memory,
                 const std::function<void(std::span<std::byte>)>& fill);

}  // namespace pipeshard
