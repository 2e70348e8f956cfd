#include "runtime/profiling/device_links.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "ir/base/error.h"
#include "runtime/device/device_communicator.h"
#include "runtime/profiling/profiling_peer.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Kind = CollectiveCall::Kind;

constexpr auto kGpuPatience = 60s;  // to open a GPU, and to meet
constexpr int64_t kFewestBytes = 256;
constexpr size_t kMostSizes = 24;
constexpr size_t kGpuTries = 7;

// A message, or a collective.
constexpr std::array<std::optional<Kind>, 5> kMeasured = {std::nullopt, Kind::kAllReduce, Kind::kAllGather,
                                                          Kind::kReduceScatter, Kind::kAllToAll};

// In memory that the two helpers and this process share.
struct GpuLinksPage {
  std::atomic<bool> is_open[2] = {false, false};
  std::atomic<bool> has_none{false};  // `why` says it
  std::atomic<size_t> id_bytes{0};
  std::array<char, 1024> id{}, name{}, why{};
  std::array<size_t, kMeasured.size()> sizes{};
  std::array<std::array<CostPoint, kMostSizes>, kMeasured.size()> curves{};
};

void putText(const std::string& text, std::array<char, 1024>& into) {
  into[text.copy(into.data(), into.size() - 1)] = 0;
}

class SharedByHelpers {
 public:
  SharedByHelpers() {
    void* memory =
        ::mmap(nullptr, sizeof(GpuLinksPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail(ErrorCode::kOutOfMemory, "no memory to share with helper processes");
    shared_ = new (memory) GpuLinksPage;
  }
  ~SharedByHelpers() { ::munmap(shared_, sizeof(GpuLinksPage)); }
  SharedByHelpers(const SharedByHelpers&) = delete;
  SharedByHelpers& operator=(const SharedByHelpers&) = delete;
  GpuLinksPage& get() const { return *shared_; }

 private:
  GpuLinksPage* shared_ = nullptr;
};

// False: there is nothing to measure.
template <typename Condition>
bool awaitOther(const GpuLinksPage& shared, const Condition& condition) {
  const Clock::time_point end = Clock::now() + kGpuPatience;
  while (!condition()) {
    if (shared.has_none) return false;
    if (Clock::now() > end) fail(ErrorCode::kPeerUnavailable, "the other GPU does not come");
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

// One of the two.
class GpuSide {
 public:
  GpuSide(std::unique_ptr<Device> device, RankId rank, const std::string& id, int64_t most_bytes)
      : device_(std::move(device)),
        rank_(rank),
        communicator_(device_->network()->meet({id, rank, 2, {all_}, kGpuPatience})),
        queue_(device_->makeQueue()),
        memory_(device_->allocate(2 * most_bytes)) {
    device_->watchWaits([this] { communicator_->check(); });
  }
  ~GpuSide() { device_->watchWaits({}); }
  GpuSide(const GpuSide&) = delete;
  GpuSide& operator=(const GpuSide&) = delete;

  // Both do the same as often: nobody need say what comes next.
  int64_t measure(std::optional<Kind> kind, int64_t bytes) {
    const int64_t repetitions = std::clamp<int64_t>((int64_t{4} << 20) / bytes, 1, 50);
    std::vector<int64_t> times;
    for (size_t t = 0; t < kGpuTries + 1; ++t) {
      const Clock::time_point start = Clock::now();
      for (int64_t i = 0; i < repetitions; ++i) give(kind, bytes);
      queue_->synchronize();
      const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
      if (t > 0) times.push_back(ns / repetitions);  // the first one warms up
    }
    std::sort(times.begin(), times.end());
    return times[kGpuTries / 2];
  }

 private:
  // `bytes` as CollectiveCost counts them, of float32 over both.
  void give(std::optional<Kind> kind, int64_t bytes) {
    std::byte* const input = memory_.bytes.data();
    std::byte* const output = input + memory_.bytes.size() / 2;
    const auto length = static_cast<size_t>(bytes);
    if (!kind) {
      if (rank_ == RankId(0)) return communicator_->send(*queue_, RankId(1), {input, length});
      return communicator_->receive(*queue_, RankId(0), {output, length});
    }
    CollectiveCall call;
    call.kind = *kind;
    call.members = all_.size();
    call.type = DataType::kFloat32;
    call.input = input;
    call.output = *kind == Kind::kAllReduce ? input : output;
    call.count = length / sizeof(float) / (*kind == Kind::kAllReduce ? 1 : all_.size());
    communicator_->collective(*queue_, all_, call);
  }

  const std::vector<RankId> all_ = {RankId(0), RankId(1)};
  std::unique_ptr<Device> device_;
  RankId rank_;
  std::unique_ptr<DeviceCommunicator> communicator_;
  std::unique_ptr<DeviceQueue> queue_;
  MemoryBlock memory_;
};

void measureAsRank(RankId rank, const std::function<std::unique_ptr<Device>(int)>& open, int64_t most_bytes,
                   GpuLinksPage& shared) {
  const bool is_first = rank == RankId(0);
  std::unique_ptr<Device> device;
  std::string id;
  try {
    device = open(static_cast<int>(rank.index()));
    if (device->network() == nullptr)
      fail(ErrorCode::kConfiguration, "this pipeshard was built without NCCL");
    if (is_first) {
      putText(device->network()->name(), shared.name);
      id = device->network()->newMeeting();
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfiguration) throw;
    putText(error.message(), shared.why);
    shared.has_none = true;
    return;
  }
  shared.is_open[rank.index()] = true;
  if (is_first) {
    PIPESHARD_CHECK(id.size() <= shared.id.size(), "an id of {} bytes", id.size());
    id.copy(shared.id.data(), id.size());
    shared.id_bytes = id.size();
  }
  if (!awaitOther(shared, [&] { return shared.is_open[0] && shared.is_open[1] && shared.id_bytes > 0; }))
    return;
  GpuSide side(std::move(device), rank, {shared.id.data(), shared.id_bytes.load()}, most_bytes);
  for (size_t m = 0; m < kMeasured.size(); ++m) {
    size_t count = 0;
    for (int64_t bytes = kFewestBytes; bytes <= most_bytes && count < kMostSizes; bytes *= 4, ++count) {
      const int64_t ns = std::max<int64_t>(1, side.measure(kMeasured[m], bytes));
      if (!is_first) continue;
      const int64_t least = count == 0 ? 1 : shared.curves[m][count - 1].ns;
      shared.curves[m][count] = {bytes, std::max(least, ns)};
      shared.sizes[m] = count + 1;
    }
  }
}

}  // namespace

DeviceLinks measureDeviceLinks(const std::function<std::unique_ptr<Device>(int number)>& open,
                               int64_t most_bytes) {
  const SharedByHelpers memory;
  GpuLinksPage& shared = memory.get();
  std::vector<std::unique_ptr<ProfilingPeer>> sides;
  for (const RankId rank : idsBelow<RankId>(2)) {
    sides.push_back(std::make_unique<ProfilingPeer>([&, rank](ProfilingPeer::Orders& orders) {
      measureAsRank(rank, open, most_bytes, shared);
      orders.answer();
      orders.next();  // until it is killed
    }));
  }
  for (const auto& side : sides) side->awaitAnswer();
  DeviceLinks links;
  links.text = shared.has_none ? shared.why.data() : shared.name.data();
  if (shared.has_none) return links;
  const auto curve = [&](size_t m) {
    return CostCurve{{shared.curves[m].begin(), shared.curves[m].begin() + shared.sizes[m]}};
  };
  links.times = LinkTimes{curve(0), curve(1), curve(2), curve(3), curve(4)};
  return links;
}

}  // namespace pipeshard
