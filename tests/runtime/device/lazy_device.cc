#include "tests/runtime/device/lazy_device.h"

#include <sys/mman.h>

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "ir/base/error.h"
#include "runtime/device/elementwise_add.h"
#include "runtime/kernels/base/cpu_kernels.h"

namespace pipeshard::testing {
namespace {

constexpr size_t kRegion = size_t{1} << 30;  // of addresses
constexpr int64_t kAlignment = 256;

class LazyDevice;

class LazyQueue : public DeviceQueue {
 public:
  explicit LazyQueue(LazyDevice& device) : device_(device) {}
  ~LazyQueue() override { synchronize(); }

  Device& device() const override;
  void upload(const std::byte* from, std::byte* to, size_t bytes) override;
  void download(const std::byte* from, std::byte* to, size_t bytes) override;
  void copy(const void* from, void* to, size_t bytes) override {
    give([=] {
      if (bytes > 0) std::memmove(to, from, bytes);  // of nothing there may be no address
    });
  }
  void copyRows(const RowCopy& rows) override {
    give([rows] { rows.run(); });
  }
  void zero(void* to, size_t bytes) override {
    give([=] { std::memset(to, 0, bytes); });
  }
  void add(DataType type, const void* part, void* total, size_t count) override {
    give([=] { addElements(type, part, total, count); });
  }
  void record(DeviceEvent& event) override;
  void wait(const DeviceEvent& event) override;
  void synchronize() override;

  LazyDevice& lazyDevice() const { return device_; }
  void give(std::function<void()> work);
  void runUntil(size_t count);

 private:
  LazyDevice& device_;
  std::deque<std::function<void()>> work_;
  size_t given_ = 0;
  size_t done_ = 0;
};

struct LazyEvent : DeviceEvent {
  LazyQueue* queue = nullptr;
  size_t count = 0;
};

struct TimedLazyEvent : LazyEvent {
  std::chrono::steady_clock::time_point time;  // of the work; the beginning: it has not happened
};

class LazyDevice : public Device {
 public:
  LazyDevice();
  ~LazyDevice() override { ::munmap(region_, kRegion); }

  std::string name() const override { return "lazy"; }
  const KernelRegistry& kernels() const override { return kernels_; }
  int64_t alignment() const override { return kAlignment; }
  bool isHostMemory() const override { return false; }
  MemoryBlock allocate(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    std::byte* begin = region_ + top_;
    top_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    PIPESHARD_CHECK(top_ <= kRegion, "{} bytes", top_);
    return {{begin, bytes}, nullptr};
  }
  MemoryBlock allocateHost(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    auto block = std::make_shared<std::vector<std::byte>>(bytes + sizeof(std::max_align_t));
    host_blocks_[block->data()] = block->size();
    return {{block->data(), bytes}, block};
  }
  std::unique_ptr<DeviceQueue> makeQueue() override { return std::make_unique<LazyQueue>(*this); }
  std::unique_ptr<DeviceEvent> makeEvent() override { return std::make_unique<LazyEvent>(); }
  std::unique_ptr<DeviceEvent> makeTimedEvent() override { return std::make_unique<TimedLazyEvent>(); }
  std::chrono::nanoseconds between(const DeviceEvent& from, const DeviceEvent& to) override {
    const std::lock_guard lock(mutex_);
    const auto timeOf = [](const DeviceEvent& event) {
      const auto& timed = dynamic_cast<const TimedLazyEvent&>(event);
      PIPESHARD_CHECK(timed.time.time_since_epoch().count() != 0, "the time of an event before it happened");
      return timed.time;
    };
    return timeOf(to) - timeOf(from);
  }

  bool isOwnHostMemory(const void* address) {
    const std::lock_guard lock(mutex_);
    const auto* at = static_cast<const std::byte*>(address);
    const auto next = host_blocks_.upper_bound(at);
    return next != host_blocks_.begin() && at < std::prev(next)->first + std::prev(next)->second;
  }
  // Work is done between the two; one thread at a time.
  void open() {
    mutex_.lock();
    if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--depth_ == 0) protect(PROT_NONE);
    mutex_.unlock();
  }
  int64_t keep(const Error& error) {
    errors_.push_back(error);
    return std::ssize(errors_) - 1;
  }
  const Error& kept(int64_t number) const { return errors_.at(number); }
  std::recursive_mutex& mutex() { return mutex_; }

 private:
  void protect(int access) { PIPESHARD_CHECK(::mprotect(region_, kRegion, access) == 0, "mprotect"); }

  std::recursive_mutex mutex_;
  int depth_ = 0;
  std::byte* region_;
  size_t top_ = 0;
  std::map<const std::byte*, size_t> host_blocks_;
  std::vector<Error> errors_;
  KernelRegistry kernels_;
};

struct Opened {
  explicit Opened(LazyDevice& of) : device(of) { device.open(); }
  ~Opened() { device.close(); }
  LazyDevice& device;
};

Device& LazyQueue::device() const { return device_; }

void LazyQueue::give(std::function<void()> work) {
  const std::lock_guard lock(device_.mutex());
  work_.push_back(std::move(work));
  ++given_;
}

void LazyQueue::runUntil(size_t count) {
  while (done_ < count) {
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    work();
    ++done_;
  }
}

void LazyQueue::upload(const std::byte* from, std::byte* to, size_t bytes) {
  const bool waits = bytes > 0 && !device_.isOwnHostMemory(from);
  copy(from, to, bytes);
  if (waits) synchronize();
}

void LazyQueue::download(const std::byte* from, std::byte* to, size_t bytes) {
  const bool waits = bytes > 0 && !device_.isOwnHostMemory(to);
  copy(from, to, bytes);
  if (waits) synchronize();
}

void LazyQueue::record(DeviceEvent& event) {
  const std::lock_guard lock(device_.mutex());
  if (auto* timed = dynamic_cast<TimedLazyEvent*>(&event)) {
    timed->time = {};
    give([timed] { timed->time = std::chrono::steady_clock::now(); });
  }
  auto& recorded = dynamic_cast<LazyEvent&>(event);
  recorded.queue = this;
  recorded.count = given_;
}

void LazyQueue::wait(const DeviceEvent& event) {
  const auto [queue, count] = [&] {
    const auto& awaited = dynamic_cast<const LazyEvent&>(event);
    return std::pair(awaited.queue, awaited.count);
  }();
  if (queue == nullptr) return;
  give([queue = queue, count = count] { queue->runUntil(count); });
}

void LazyQueue::synchronize() {
  const Opened opened(device_);
  runUntil(given_);
}

// Of a kernel that communicates: the device's memory is closed meanwhile.
class ClosedCollectives : public Collectives {
 public:
  ClosedCollectives(LazyQueue& queue, Collectives& inner) : queue_(queue), inner_(inner) {}
  void call(const CollectiveCall& call) override {
    queue_.lazyDevice().close();
    inner_.call(call);
    queue_.synchronize();
    queue_.lazyDevice().open();
  }

 private:
  LazyQueue& queue_;
  Collectives& inner_;
};

class LazyKernel : public Kernel {
 public:
  LazyKernel(LazyDevice& device, std::unique_ptr<Kernel> inner) : device_(device), inner_(std::move(inner)) {}

  void run(const KernelArguments& arguments) override {
    auto& queue = dynamic_cast<LazyQueue&>(*arguments.queue);
    if (arguments.collectives != nullptr && collectiveGroup().valid()) {
      queue.synchronize();
      ClosedCollectives collectives(queue, *arguments.collectives);
      KernelArguments own = arguments;
      own.collectives = &collectives;
      const Opened opened(device_);
      return inner_->run(own);
    }
    queue.give([this, inputs = std::vector(arguments.inputs.begin(), arguments.inputs.end()),
                outputs = std::vector(arguments.outputs.begin(), arguments.outputs.end()), arguments] {
      KernelArguments own = arguments;
      own.inputs = inputs;
      own.outputs = outputs;
      try {
        inner_->run(own);
      } catch (const Error& error) {
        if (own.fault->found == 0) *own.fault = {1, device_.keep(error), 0};
      }
    });
  }
  size_t workspaceBytes() const override { return inner_->workspaceBytes(); }
  bool mayRunInPlace(int input, int output) const override { return inner_->mayRunInPlace(input, output); }
  bool mayAccumulate(int output) const override { return inner_->mayAccumulate(output); }
  GroupId collectiveGroup() const override { return inner_->collectiveGroup(); }
  size_t collectiveMembers() const override { return inner_->collectiveMembers(); }
  size_t collectiveBytes() const override { return inner_->collectiveBytes(); }
  bool recordsFaults() const override { return !collectiveGroup().valid(); }
  void throwFault(const DataFault& fault) const override { throw Error(device_.kept(fault.position)); }

 private:
  LazyDevice& device_;
  std::unique_ptr<Kernel> inner_;
};

LazyDevice::LazyDevice() {
  void* mapped = ::mmap(nullptr, kRegion, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PIPESHARD_CHECK(mapped != MAP_FAILED, "mmap");
  region_ = static_cast<std::byte*>(mapped);
  for (const std::string& name : cpuKernels().operators()) {
    const size_t colons = name.find("::");
    kernels_.add(name.substr(0, colons), name.substr(colons + 2), [this](const KernelSpec& spec) {
      return std::make_unique<LazyKernel>(*this, cpuKernels().create(spec));
    });
  }
}

}  // namespace

std::unique_ptr<Device> makeLazyDevice() { return std::make_unique<LazyDevice>(); }

}  // namespace pipeshard::testing
