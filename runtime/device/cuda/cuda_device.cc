#include "runtime/device/cuda/cuda_device.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <span>
#include <thread>
#include <utility>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "runtime/device/cuda/cuda_add.h"
#include "runtime/device/cuda/cuda_error.h"
#include "runtime/device/cuda/cuda_kernels.h"
#include "runtime/device/cuda/ipc_communicator.h"
#ifdef PIPESHARD_NCCL
#include "runtime/device/cuda/nccl_communicator.h"
#endif
#include "runtime/kernels/base/cuda_launch.h"
#include "runtime/kernels/base/cuda_plans.h"
#include "runtime/kernels/base/cudnn_use.h"

namespace pipeshard {
namespace {

constexpr size_t kPassedAtOnce = size_t{1} << 20;  // through pinned memory
constexpr int64_t kCudaAlignment = 256;            // as cudaMalloc has it
constexpr size_t kMostPitch = 0x7fffffff;          // of cudaMemcpy2DAsync (cudaDevAttrMaxPitch)
// A wait that is watched: so often without a pause, then with one.
constexpr int kLooksAtOnce = 100;
constexpr std::chrono::microseconds kLookAgain{50};

class CudaEvent : public DeviceEvent {
 public:
  explicit CudaEvent(unsigned flags) : keeps_time((flags & cudaEventDisableTiming) == 0) {
    checkCuda(cudaEventCreateWithFlags(&event_, flags), "an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }

  const bool keeps_time;
  WorkClock clock;  // of when it was recorded

 private:
  cudaEvent_t event_ = nullptr;
};

// CUDA is given pinned memory alone: of other memory its calls may wait, or may not, and a call that waits
// cannot be watched. What the caller has elsewhere goes through memory of the queue's own, part by part.
class CudaQueue : public DeviceQueue {
 public:
  explicit CudaQueue(CudaDevice& device) : device_(device), number_(device.numberQueue()) {
    device_.use();
    checkCuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  ~CudaQueue() override {
    if (!device_.isHostBehind(clock())) cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
    device_.givePassage(std::move(passage_));
  }

  Device& device() const override { return device_; }
  // For an operation on the device's memory, which has been made zero.
  cudaStream_t stream() const {
    if (clock_.of(kZeroing) < device_.allocations()) device_.joinHost(clock_);
    if (clock_.of(kZeroing) < device_.allocations()) clock_.reach(kZeroing, device_.waitForZeros(stream_));
    ++operations_;
    return stream_;
  }

  void upload(const std::byte* from, std::byte* to, size_t bytes) override {
    if (device_.isPinned(from)) return move(from, to, bytes, cudaMemcpyHostToDevice, "an upload");
    for (size_t done = 0; done < bytes; done += kPassedAtOnce) {
      const std::span<std::byte> part = passage(bytes - done);
      synchronize();
      std::memcpy(part.data(), from + done, part.size());
      move(part.data(), to + done, part.size(), cudaMemcpyHostToDevice, "an upload");
    }
  }
  void download(const std::byte* from, std::byte* to, size_t bytes) override {
    if (device_.isPinned(to)) return move(from, to, bytes, cudaMemcpyDeviceToHost, "a download");
    for (size_t done = 0; done < bytes; done += kPassedAtOnce) {
      const std::span<std::byte> part = passage(bytes - done);
      move(from + done, part.data(), part.size(), cudaMemcpyDeviceToHost, "a download");
      synchronize();
      std::memcpy(to + done, part.data(), part.size());
    }
  }
  void copy(const void* from, void* to, size_t bytes) override {
    if (from != to) move(from, to, bytes, cudaMemcpyDeviceToDevice, "a copy");
  }
  void copyRows(const RowCopy& rows) override {
    const bool whole = rows.bytes == rows.from_stride && rows.bytes == rows.to_stride;
    if (whole || rows.count == 1) return copy(rows.from, rows.to, rows.bytes * rows.count);
    if (rows.bytes == 0 || rows.count == 0) return;
    if (std::max(rows.from_stride, rows.to_stride) > kMostPitch) {  // memory has room for few of these
      for (size_t i = 0; i < rows.count; ++i)
        copy(rows.from + i * rows.from_stride, rows.to + i * rows.to_stride, rows.bytes);
      return;
    }
    device_.use();
    checkCuda(cudaMemcpy2DAsync(rows.to, rows.to_stride, rows.from, rows.from_stride, rows.bytes, rows.count,
                                cudaMemcpyDeviceToDevice, stream()),
              "a copy of rows");
  }
  void zero(void* to, size_t bytes) override {
    if (bytes == 0) return;
    device_.use();
    checkCuda(cudaMemsetAsync(to, 0, bytes, stream()), "zeros");
  }
  void add(DataType type, const void* part, void* total, size_t count) override {
    if (count == 0) return;
    device_.use();
    if (addOnDevice(stream(), type, part, total, count)) return;
    fail(ErrorCode::kBadModel,
         "tensors of type {} cannot be accumulated (float32, float64, int32, int64 can)", dataTypeName(type));
  }
  void record(DeviceEvent& event) override {
    device_.use();
    auto& recorded = static_cast<CudaEvent&>(event);
    checkCuda(cudaEventRecord(recorded.get(), stream_), "an event's record");
    if (recorded.keeps_time) ++operations_;  // whoever asks for the time has waited for it
    recorded.clock = clock();
  }
  void wait(const DeviceEvent& event) override {
    const auto& awaited = static_cast<const CudaEvent&>(event);
    device_.joinHost(clock_);
    if (clock().covers(awaited.clock)) return;
    device_.use();
    checkCuda(cudaStreamWaitEvent(stream_, awaited.get(), 0), "a wait for an event");
    clock_.join(awaited.clock);
  }
  void synchronize() override {
    if (device_.isHostBehind(clock())) return;
    device_.use();
    device_.await(stream_);
    device_.hostHasWaitedFor(clock());
  }

 private:
  void move(const void* from, void* to, size_t bytes, cudaMemcpyKind kind, const char* what) {
    if (bytes == 0) return;
    device_.use();
    checkCuda(cudaMemcpyAsync(to, from, bytes, kind, stream()), what);
  }
  // Pinned, for what is left, or as much of it as goes at once.
  std::span<std::byte> passage(size_t left) {
    if (passage_.bytes.empty()) passage_ = device_.takePassage();
    return passage_.bytes.first(std::min(left, kPassedAtOnce));
  }
  const WorkClock& clock() const {
    clock_.reach(number_, operations_);
    return clock_;
  }

  CudaDevice& device_;
  const size_t number_;
  cudaStream_t stream_ = nullptr;
  MemoryBlock passage_;  // empty until it is needed
  mutable uint64_t operations_ = 0;
  mutable WorkClock clock_;  // what it is given next is behind that; its own operations as of clock()
};

std::string versionText(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::atomic<bool> lost = false;  // a GPU of this process

// What Xids and ECC errors come as. The last: a GPU that has fallen off the bus.
bool isHardware(cudaError_t code) {
  return code == cudaErrorECCUncorrectable || code == cudaErrorNvlinkUncorrectable ||
         code == cudaErrorContained || code == cudaErrorHardwareStackError ||
         code == cudaErrorExternalDevice || code == cudaErrorUnknown;
}

// "0: NVIDIA H100 PCIe, 1: ..."
std::string listDevices(int count) {
  std::string list;
  for (int k = 0; k < count; ++k) {
    cudaDeviceProp properties{};
    const bool known = cudaGetDeviceProperties(&properties, k) == cudaSuccess;
    list += fmt::format("{}{}: {}", k == 0 ? "" : ", ", k, known ? properties.name : "?");
  }
  return list;
}

// The one that is meant; Error(kConfiguration) saying what there is.
int findDevice(int number, bool shared) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const std::string found = fmt::format("CUDA runtime {}, {}", versionText(runtime),
                                        driver == 0 ? "no driver" : "driver for CUDA " + versionText(driver));
  if (code != cudaSuccess) {
    fail(ErrorCode::kConfiguration, "--device cuda: no GPU can be used: {} ({})", cudaGetErrorString(code),
         found);
  }
  if (number < count) return number;
  if (shared) return number % count;
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  fail(ErrorCode::kConfiguration,
       "--device cuda: there is no GPU number {}: {} found ({}; {}{}); --share-devices lets several ranks "
       "have "
       "one",
       number, count, listDevices(count), found,
       visible == nullptr ? "" : fmt::format("; CUDA_VISIBLE_DEVICES={}", visible));
}

}  // namespace

void checkCuda(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  const std::string text =
      fmt::format("CUDA: {}: {} ({})", what, cudaGetErrorString(code), cudaGetErrorName(code));
  if (isHardware(code)) {
    lost = true;
    fail(ErrorCode::kPeerUnavailable,
         "{}; the GPU or its link has failed, not the program: the kernel's log has the Xid (dmesg | grep "
         "Xid), nvidia-smi -q what the GPU says",
         text);
  }
  fail(code == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kInternal, "{}", text);
}

bool deviceIsLost() { return lost; }

namespace kernels {

cudaStream_t streamOf(const DeviceQueue* queue) { return static_cast<const CudaQueue*>(queue)->stream(); }
void checkLaunch(const char* kernel) { checkCuda(cudaGetLastError(), kernel); }

void failCall(const char* call, const char* why) {
  checkCuda(cudaGetLastError(), call);  // what the GPU says comes first
  fail(ErrorCode::kInternal, "CUDA: {}: {}", call, why);
}

void refuseAxes(size_t axes) {
  fail(ErrorCode::kBadModel, "a tensor of {} axes that cannot be merged; the CUDA kernels take {}", axes,
       kMostAxes);
}

}  // namespace kernels

CudaDevice::CudaDevice(int number, bool shared) : number_(findDevice(number, shared)) {
  use();
  cudaDeviceProp properties{};
  checkCuda(cudaGetDeviceProperties(&properties, number_), "the device's properties");
  name_ = fmt::format("cuda:{} ({})", number_, properties.name);
  place_ =
      fmt::format("{:02x}", fmt::join(std::span(reinterpret_cast<const unsigned char*>(properties.uuid.bytes),
                                                sizeof properties.uuid.bytes),
                                      ""));
#ifdef PIPESHARD_NCCL
  network_ = std::make_unique<NcclNetwork>(*this);
#endif
  near_network_ = std::make_unique<IpcNetwork>(*this);
  checkCuda(cudaStreamCreateWithFlags(&zeroing_, cudaStreamNonBlocking), "a stream");
  checkCuda(cudaEventCreateWithFlags(&zeroed_, cudaEventDisableTiming), "an event");
}

CudaDevice::~CudaDevice() {
  cudaEventDestroy(zeroed_);
  cudaStreamDestroy(zeroing_);
}

void CudaDevice::use() const {
  thread_local int used = -1;
  if (used == number_) return;
  checkCuda(cudaSetDevice(number_), "the choice of a device");
  used = number_;
}

const KernelRegistry& CudaDevice::kernels() const { return cudaKernels(); }

std::string CudaDevice::libraries() const { return kernels::cudnnUse(); }
std::string CudaDevice::comparedLibrary() const { return kernels::cudnnVersion(); }

int64_t CudaDevice::alignment() const { return kCudaAlignment; }

MemoryBlock CudaDevice::allocate(size_t bytes) {
  if (bytes == 0) return {};
  use();
  void* begin = nullptr;
  if (const cudaError_t code = cudaMalloc(&begin, bytes); code != cudaSuccess) {
    if (code != cudaErrorMemoryAllocation) checkCuda(code, "memory");
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    cudaGetLastError();
    fail(ErrorCode::kOutOfMemory, "{}: cannot get {} bytes of memory, of {} that are free: {}", name_, bytes,
         free_bytes, cudaGetErrorString(code));
  }
  const auto release = [held = held_, bytes](void* block) {
    held->now -= static_cast<int64_t>(bytes);
    {
      const std::lock_guard lock(held->mutex);
      held->blocks.erase(static_cast<std::byte*>(block));
    }
    cudaFree(block);
  };
  MemoryBlock block{{static_cast<std::byte*>(begin), bytes}, std::shared_ptr<void>(begin, release)};
  const std::lock_guard lock(zeros_);
  held_->now += static_cast<int64_t>(bytes);
  held_->most = std::max(held_->most.load(), held_->now.load());
  checkCuda(cudaMemsetAsync(begin, 0, bytes, zeroing_), "zeros");
  checkCuda(cudaEventRecord(zeroed_, zeroing_), "the end of zeros");
  ++allocations_;
  const std::lock_guard blocks_lock(held_->mutex);
  held_->blocks[block.bytes.data()] = {block.bytes.data(), bytes, allocations_};
  return block;
}

CudaDevice::Allocation CudaDevice::allocationOf(const void* address) const {
  const std::lock_guard lock(held_->mutex);
  const auto* at = static_cast<const std::byte*>(address);
  const auto next = held_->blocks.upper_bound(at);
  if (next == held_->blocks.begin()) return {};
  const Allocation& found = std::prev(next)->second;
  return at < found.begin + found.bytes ? found : Allocation();
}

MemoryBlock CudaDevice::takePassage() {
  {
    const std::lock_guard lock(host_);
    if (!passages_.empty()) {
      MemoryBlock taken = std::move(passages_.back());
      passages_.pop_back();
      return taken;
    }
  }
  return allocateHost(kPassedAtOnce);
}

void CudaDevice::givePassage(MemoryBlock passage) {
  const std::lock_guard lock(host_);
  if (!passage.bytes.empty()) passages_.push_back(std::move(passage));
}

size_t CudaDevice::numberQueue() {
  const std::lock_guard lock(host_);
  return ++queues_;
}

void CudaDevice::joinHost(WorkClock& clock) const {
  const std::lock_guard lock(host_);
  clock.join(host_clock_);
}

bool CudaDevice::isHostBehind(const WorkClock& clock) const {
  const std::lock_guard lock(host_);
  return host_clock_.covers(clock);
}

void CudaDevice::hostHasWaitedFor(const WorkClock& clock) {
  const std::lock_guard lock(host_);
  host_clock_.join(clock);
}

uint64_t CudaDevice::waitForZeros(cudaStream_t stream) const {
  const std::lock_guard lock(zeros_);
  checkCuda(cudaStreamWaitEvent(stream, zeroed_, 0), "a wait for zeros");
  return allocations_;
}

MemoryBlock CudaDevice::allocateHost(size_t bytes) {
  if (bytes == 0) return {};
  use();
  void* begin = nullptr;
  if (const cudaError_t code = cudaMallocHost(&begin, bytes); code != cudaSuccess) {
    cudaGetLastError();
    if (code != cudaErrorMemoryAllocation) checkCuda(code, "pinned memory");
    fail(ErrorCode::kOutOfMemory, "{}: cannot get {} bytes of pinned host memory", name_, bytes);
  }
  const auto release = [pinned = pinned_](void* block) {
    {
      const std::lock_guard lock(pinned->mutex);
      pinned->bytes.erase(static_cast<std::byte*>(block));
    }
    cudaFreeHost(block);
  };
  MemoryBlock block{{static_cast<std::byte*>(begin), bytes}, std::shared_ptr<void>(begin, release)};
  std::memset(begin, 0, bytes);
  const std::lock_guard lock(pinned_->mutex);
  pinned_->bytes[block.bytes.data()] = bytes;
  return block;
}

bool CudaDevice::isPinned(const void* address) const {
  const std::lock_guard lock(pinned_->mutex);
  const auto* at = static_cast<const std::byte*>(address);
  const auto next = pinned_->bytes.upper_bound(at);
  return next != pinned_->bytes.begin() && at < std::prev(next)->first + std::prev(next)->second;
}

bool CudaDevice::isLost() const { return deviceIsLost(); }

bool CudaDevice::hasHappened(const DeviceEvent& event) {
  use();
  const cudaError_t code = cudaEventQuery(static_cast<const CudaEvent&>(event).get());
  if (code == cudaErrorNotReady) {
    cudaGetLastError();  // it is none
    return false;
  }
  checkCuda(code, "work that was given before");
  return true;
}

void CudaDevice::await(cudaStream_t stream) const {
  if (!watch_) return checkCuda(cudaStreamSynchronize(stream), "work that was given before");
  for (int looks = 0;; ++looks) {
    const cudaError_t code = cudaStreamQuery(stream);
    if (code != cudaErrorNotReady) return checkCuda(code, "work that was given before");
    cudaGetLastError();  // it is none
    watch_();
    if (looks > kLooksAtOnce) std::this_thread::sleep_for(kLookAgain);
  }
}

std::unique_ptr<DeviceQueue> CudaDevice::makeQueue() { return std::make_unique<CudaQueue>(*this); }

std::unique_ptr<DeviceEvent> CudaDevice::makeEvent() {
  use();
  return std::make_unique<CudaEvent>(cudaEventDisableTiming);
}

std::unique_ptr<DeviceEvent> CudaDevice::makeTimedEvent() {
  use();
  return std::make_unique<CudaEvent>(cudaEventDefault);
}

std::chrono::nanoseconds CudaDevice::between(const DeviceEvent& from, const DeviceEvent& to) {
  use();
  float milliseconds = 0;
  checkCuda(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(from).get(),
                                 static_cast<const CudaEvent&>(to).get()),
            "the time between two events");
  return std::chrono::nanoseconds(std::llround(milliseconds * 1e6));
}

}  // namespace pipeshard
