#include "runtime/profiling/profiling_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/device/aligned_memory.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSmallestRange = 256;
constexpr size_t kLargest = size_t{64} << 20;
// Copies take turns over so much memory on either side: what a step copies was not copied a moment ago.
constexpr size_t kFootprint = size_t{16} << 20;
constexpr size_t kBatches = 31;
constexpr size_t kBatchBytes = size_t{1} << 20;

}  // namespace

CostCurve measureMemory() {
  const AlignedMemory memory(2 * kLargest);
  std::memset(memory.data(), 1, memory.size());
  CostCurve curve;
  for (size_t bytes = kSmallestRange; bytes <= kLargest; bytes *= 4) {
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

}  // namespace pipeshard
