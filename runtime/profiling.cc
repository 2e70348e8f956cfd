#include "runtime/profiling.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>

#include "ir/error.h"
#include "runtime/aligned_memory.h"
#include "runtime/memory_plan.h"
#include "runtime/profiling_peer.h"
#include "runtime/subgraph.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kShortest = 20'000;  // ns that one reading of the clock stands for
constexpr size_t kMostCopies = 256;
constexpr size_t kFewestBatches = 3;
constexpr size_t kMostBatches = 64;

int64_t sinceNs(Clock::time_point start) { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count(); }

size_t aligned(int64_t bytes) { return static_cast<size_t>((bytes + kMemoryAlignment - 1) / kMemoryAlignment * kMemoryAlignment); }

int64_t bytesOf(const Value& value) { return byteCount(value.data_type, *value.shape); }

// The nanoseconds of one run(): the median of batches.
template <typename Run>
int64_t medianTime(int64_t budget, const Run& run) {
  Clock::time_point start = Clock::now();
  run();
  const int64_t once = std::max<int64_t>(1, sinceNs(start));
  const int64_t batch = std::max<int64_t>(1, kShortest / once);
  const size_t batches = std::clamp(static_cast<size_t>(budget / (batch * once)), kFewestBatches, kMostBatches);
  std::vector<int64_t> times;
  for (size_t b = 0; b < batches; ++b) {
    start = Clock::now();
    for (int64_t i = 0; i < batch; ++i) run();
    times.push_back(sinceNs(start));
  }
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(batches / 2), times.end());
  return std::max<int64_t>(1, std::llround(static_cast<double>(times[batches / 2]) / static_cast<double>(batch)));
}

template <typename T>
void fillNormal(std::span<std::byte> bytes, std::mt19937& random) {
  std::normal_distribution<T> normal;
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    const T number = normal(random);
    std::memcpy(bytes.data() + at, &number, sizeof(T));
  }
}

template <typename T>
void fillIndices(std::span<std::byte> bytes, int64_t below, std::mt19937& random) {
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    const T number = static_cast<T>(random() % static_cast<uint64_t>(below));
    std::memcpy(bytes.data() + at, &number, sizeof(T));
  }
}

// The step of an update: steps begin at 1.
void fillCount(std::span<std::byte> content) {
  constexpr int64_t kStep = 1;
  std::memcpy(content.data(), &kStep, sizeof(kStep));
}

// A sample ready to run, with `copies` sets of tensors that take turns.
class Runnable {
 public:
  Runnable(const OperatorSample& sample, const ProfilingOptions& options)
      : compiled_(sample.graph, "sample", options.kernels != nullptr ? *options.kernels : cpuKernels()) {
    updates_ = std::any_of(sample.in_place.begin(), sample.in_place.end(), [](int input) { return input >= 0; });
    CompiledSubgraph::Aliasing aliasing;
    for (size_t i = 0; i < compiled_.inputCount(); ++i) aliasing.inputs.push_back(static_cast<int>(i));
    for (size_t o = 0; o < compiled_.outputCount(); ++o) {
      const int shared = sample.in_place.empty() ? -1 : sample.in_place[o];
      aliasing.outputs.push_back(shared >= 0 ? shared : static_cast<int>(compiled_.inputCount() + o));
    }
    const size_t set = place(aliasing);
    const size_t copies = std::clamp<size_t>((static_cast<size_t>(sample.footprint_bytes) + set - 1) / set, 1, kMostCopies);
    memory_ = AlignedMemory(copies * set);
    for (size_t copy = 0; copy < copies; ++copy) bind(aliasing, memory_.data() + copy * set, copy == 0);
  }

  size_t copies() const { return runs_.size(); }

  void run() {
    runs_[next_].run(progress_);
    next_ = next_ + 1 == runs_.size() ? 0 : next_ + 1;
  }

 private:
  // Offsets of the tensors of a set; returns its size.
  size_t place(const CompiledSubgraph::Aliasing& aliasing) {
    size_t bytes = 0;
    for (size_t i = 0; i < compiled_.inputCount(); ++i) {
      inputs_.push_back(bytes);
      bytes += aligned(bytesOf(compiled_.input(i)));
    }
    for (size_t o = 0; o < compiled_.outputCount(); ++o) {
      const size_t shared = static_cast<size_t>(aliasing.outputs[o]);
      outputs_.push_back(shared < inputs_.size() ? inputs_[shared] : bytes);
      if (shared >= inputs_.size()) bytes += aligned(bytesOf(compiled_.output(o)));
    }
    workspace_ = bytes;
    return bytes + aligned(compiled_.workspaceBytes(aliasing)) + kMemoryAlignment;
  }

  void bind(const CompiledSubgraph::Aliasing& aliasing, std::byte* set, bool first) {
    std::vector<std::byte*> inputs, outputs;
    for (const size_t offset : inputs_) inputs.push_back(set + offset);
    for (const size_t offset : outputs_) outputs.push_back(set + offset);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::span<std::byte> content(inputs[i], static_cast<size_t>(bytesOf(compiled_.input(i))));
      if (first) {
        fill(compiled_.input(i), content);
      } else {
        std::memcpy(content.data(), memory_.data() + inputs_[i], content.size());
      }
    }
    runs_.push_back(compiled_.bind(aliasing, inputs, outputs, set + workspace_));
  }

  void fill(const Value& value, std::span<std::byte> content) {
    switch (value.data_type) {
      case DataType::kFloat32: return fillNormal<float>(content, random_);
      case DataType::kFloat64: return fillNormal<double>(content, random_);
      case DataType::kInt64:
        if (updates_ && value.shape->empty()) return fillCount(content);
        return fillIndices<int64_t>(content, smallestAxis(value), random_);
      case DataType::kInt32: return fillIndices<int32_t>(content, smallestAxis(value), random_);
      case DataType::kBool: return fillIndices<uint8_t>(content, 2, random_);
      default: return;  // zeros
    }
  }

  int64_t smallestAxis(const Value& indices) const {
    int64_t smallest = INT64_MAX;
    const auto consider = [&](const Value& value) {
      if (&value == &indices || !isFloatingPoint(value.data_type)) return;
      for (const int64_t size : *value.shape) smallest = std::min(smallest, std::max<int64_t>(1, size));
    };
    for (size_t i = 0; i < compiled_.inputCount(); ++i) consider(compiled_.input(i));
    for (size_t o = 0; o < compiled_.outputCount(); ++o) consider(compiled_.output(o));
    return smallest == INT64_MAX ? 1 : smallest;
  }

  CompiledSubgraph compiled_;
  AlignedMemory memory_;
  std::vector<size_t> inputs_, outputs_;  // offsets in a set
  size_t workspace_ = 0;
  std::vector<BoundRun> runs_;
  size_t next_ = 0;
  bool updates_ = false;
  std::atomic<uint64_t> progress_{0};
  std::mt19937 random_{7};
};

void warmUp(Runnable& sample) {
  for (size_t copy = 0; copy < sample.copies(); ++copy) sample.run();
}

// Helper: runs what it is told to until it is stopped.
void keepBusy(std::span<const OperatorSample> samples, const ProfilingOptions& options, ProfilingPeer::Orders& orders) {
  omp_set_num_threads(options.threads);
  while (const std::optional<int64_t> order = orders.next()) {
    Runnable sample(samples[static_cast<size_t>(*order)], options);
    warmUp(sample);
    orders.answer();
    while (!orders.stopped()) sample.run();
    orders.answer();
  }
}

}  // namespace

std::vector<OperatorTime> measureOperators(std::span<const OperatorSample> samples, const ProfilingOptions& options,
                                           const ProfilingProgress& progress) {
  std::vector<std::unique_ptr<ProfilingPeer>> peers;  // before this process has threads of its own
  for (int worker = 1; worker < options.workers; ++worker) {
    peers.push_back(std::make_unique<ProfilingPeer>([&](ProfilingPeer::Orders& orders) { keepBusy(samples, options, orders); }));
  }
  omp_set_num_threads(options.threads);
  std::vector<OperatorTime> times;
  for (size_t s = 0; s < samples.size(); ++s) {
    Runnable sample(samples[s], options);
    warmUp(sample);
    OperatorTime time;
    time.ns = medianTime(options.budget_ns, [&] { sample.run(); });
    if (!peers.empty()) {
      for (const auto& peer : peers) peer->tell(static_cast<int64_t>(s));
      for (const auto& peer : peers) peer->awaitAnswer();
      time.busy_ns = medianTime(options.budget_ns, [&] { sample.run(); });
      for (const auto& peer : peers) peer->stop();
      for (const auto& peer : peers) peer->awaitAnswer();
    }
    times.push_back(time);
    if (progress) progress(s + 1, samples.size());
  }
  return times;
}

CostCurve measureMemory(const ProfilingOptions& options) {
  constexpr size_t kLargest = size_t{64} << 20;
  const AlignedMemory memory(2 * kLargest);
  std::memset(memory.data(), 1, memory.size());
  CostCurve curve;
  for (size_t bytes = size_t{4} << 10; bytes <= kLargest; bytes *= 4) {
    const int64_t ns = medianTime(options.budget_ns, [&] { std::memcpy(memory.data() + kLargest, memory.data(), bytes); });
    const int64_t least = curve.points.empty() ? 0 : curve.points.back().ns;
    curve.points.push_back({static_cast<int64_t>(2 * bytes), std::max(ns, least)});
  }
  return curve;
}

}  // namespace pipeshard
