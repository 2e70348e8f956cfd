#include "runtime/profiling/profiling_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/device/aligned_memory.h"
#include "runtime/device/device.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSmallestRange = 256;
constexpr size_t kLargest = size_t{64} << 20;
// Copies take turns over so much memory on either side: what a step copies was not copied a moment ago.
constexpr size_t kFootprint = size_t{16} << 20;
constexpr size_t kDeviceFootprint = size_t{256} << 20;  // more than a GPU's cache
constexpr size_t kBatches = 31;
constexpr size_t kBatchBytes = size_t{1} << 20;

CostCurve measureHost(size_t most_bytes) {
  const AlignedMemory memory(2 * kLargest);
  std::memset(memory.data(), 1, memory.size());
  CostCurve curve;
  for (size_t bytes = kSmallestRange; bytes <= most_bytes; bytes *= 4) {
    const size_t places = std::max<size_t>(1, kFootprint / bytes);
    const size_t copies = std::max<size_t>(1, kBatchBytes / bytes);
    std::vector<int64_t> times;
    size_t place = 0;
    for (size_t batch = 0; batch < (bytes == kLargest ? 3 : kBatches); ++batch) {
      const Clock::time_point start = Clock::now();
      for (size_t i = 0; i < copies; ++i) {
        std::memcpy(memory.data() + kLargest + place * bytes, memory.data() + place * bytes, bytes);
        place = (place + 1) % places;
      }
      const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
      times.push_back(ns / static_cast<int64_t>(copies));
    }
    std::sort(times.begin(), times.end());
    const int64_t least = curve.points.empty() ? 1 : curve.points.back().ns;
    curve.points.push_back({static_cast<int64_t>(2 * bytes), std::max(times[times.size() / 2], least)});
  }
  return curve;
}

int64_t medianOf(std::vector<int64_t> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Of one copy, by the device's clock; copy(k) gives the k-th to the queue.
int64_t timeOnDevice(DeviceQueue& queue, const std::function<void(size_t)>& copy) {
  constexpr size_t kCopies = 8;
  constexpr size_t kTurns = 9;
  const auto begin = queue.device().makeTimedEvent(), end = queue.device().makeTimedEvent();
  std::vector<int64_t> times;
  for (size_t turn = 0; turn < kTurns; ++turn) {
    queue.record(*begin);
    for (size_t k = 0; k < kCopies; ++k) copy(turn * kCopies + k);
    queue.record(*end);
    queue.synchronize();
    times.push_back(queue.device().between(*begin, *end).count() / static_cast<int64_t>(kCopies));
  }
  return medianOf(std::move(times));
}

// Ascending, by sizes of 4^n.
CostCurve curveOf(size_t most_bytes, int64_t amount_of_a_byte, const std::function<int64_t(size_t)>& timeOf) {
  CostCurve curve;
  for (size_t bytes = kSmallestRange; bytes <= most_bytes; bytes *= 4) {
    const int64_t least = curve.points.empty() ? 1 : curve.points.back().ns;
    curve.points.push_back({static_cast<int64_t>(bytes) * amount_of_a_byte, std::max(timeOf(bytes), least)});
  }
  return curve;
}

}  // namespace

CostCurve measureMemory(Device& device, size_t most_bytes) {
  if (device.isHostMemory()) return measureHost(most_bytes);
  const size_t footprint = std::min(kDeviceFootprint, 16 * most_bytes);
  const MemoryBlock memory = device.allocate(2 * footprint);
  const auto queue = device.makeQueue();
  return curveOf(most_bytes, 2, [&](size_t bytes) {
    const size_t places = footprint / bytes;
    return timeOnDevice(*queue, [&](size_t k) {
      std::byte* from = memory.bytes.data() + k % places * bytes;
      queue->copy(from, from + footprint, bytes);
    });
  });
}

CostCurve measureStaging(Device& device, size_t most_bytes) {
  if (device.isHostMemory()) return {};
  const MemoryBlock memory = device.allocate(most_bytes), host = device.allocateHost(most_bytes);
  const auto queue = device.makeQueue();
  return curveOf(most_bytes, 1, [&](size_t bytes) {
    return timeOnDevice(*queue, [&](size_t) {
      queue->download(memory.bytes.data(), host.bytes.data(), bytes);
      queue->upload(host.bytes.data(), memory.bytes.data(), bytes);
    });
  });
}

}  // namespace pipeshard
