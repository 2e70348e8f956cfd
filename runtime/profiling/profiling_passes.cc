// Operators, timed where they stand in a step.
#include "runtime/profiling/profiling_passes.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "ir/base/error.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/profiling/node_events.h"
#include "runtime/profiling/profiling_peer.h"
#include "runtime/profiling/profiling_rank.h"

namespace pipeshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMostSteps = 50;

int64_t nsSince(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Times of works, over the places at which they stand.
struct WorkTimes {
  explicit WorkTimes(size_t works) : sums(works), places(works), repetitions(works) {}
  int64_t mean(size_t work) const {
    return places[work] == 0
               ? 0
               : std::max<int64_t>(1, std::llround(sums[work] / static_cast<double>(places[work])));
  }
  std::vector<double> sums;
  std::vector<int> places, repetitions;
};

// Of the nodes of one program: a time for every run of every node.
class PassTimer : public NodeObserver {
 public:
  PassTimer(const PassSample& sample, WorkTimes& times)
      : sample_(sample), times_(times), seen_(times.places.size()) {
    for (const Instruction& instruction : sample.image.program.instructions) {
      first_place_.push_back(places_.size());
      if (!instruction.subgraph.valid()) continue;
      for (const int work : sample.work.at(instruction.subgraph.index())) places_.push_back({.work = work});
    }
  }

  // From now on, what has been measured is left out.
  void setDeadline(Clock::time_point deadline) { deadline_ = deadline; }

  void beginRun(size_t instruction) override { first_ = first_place_[instruction]; }

  bool beginNodes(std::span<const size_t> nodes, DeviceQueue& queue) override {
    start_ = Clock::now();
    if (start_ >= deadline_ &&
        std::ranges::all_of(nodes, [&](size_t node) { return isKnown(places_.at(first_ + node)); }))
      return false;
    if (!queue.device().isHostMemory()) events_.begin(queue, first_ + nodes.back());
    return true;
  }

  // Nodes that run as one have equal parts of its time: they have as many elements.
  void endNodes(std::span<const size_t> nodes, DeviceQueue& queue) override {
    const int64_t part = nsSince(start_) / std::ssize(nodes);
    if (!queue.device().isHostMemory()) events_.end(queue);
    for (const size_t node : nodes) {
      Place& place = places_.at(first_ + node);
      if (queue.device().isHostMemory()) place.current += part;
      place.ran = true;
      if (place.work >= 0) seen_[place.work] = true;
    }
  }

  void endStep() {
    events_.take([this](size_t place, int64_t ns) { places_[place].current += ns; });
    totals_.push_back(0);
    for (Place& place : places_) {
      totals_.back() += place.current;
      place.ns.push_back(std::exchange(place.current, 0));
      place.ran = false;
    }
  }

  // Of the steps that took neither long nor short as a whole, the mean of every place: so the times of a step
  // add up to what such a step takes, which medians of each do not (what disturbs, disturbs now this one, now
  // that one).
  void addToTimes() {
    const std::vector<size_t> usual = usualSteps();
    for (const Place& place : places_) {
      if (place.work < 0) continue;
      std::vector<int64_t> ns;
      for (const size_t step : usual) ns.push_back(place.ns[step]);
      // left out later: what there is
      if (std::count(ns.begin(), ns.end(), 0) == std::ssize(ns)) ns = place.ns;
      ns.erase(std::remove(ns.begin(), ns.end(), 0), ns.end());
      if (ns.empty()) continue;
      const size_t work = place.work;
      times_.sums[work] += static_cast<double>(std::accumulate(ns.begin(), ns.end(), int64_t{0})) /
                           static_cast<double>(ns.size());
      ++times_.places[work];
      times_.repetitions[work] += static_cast<int>(ns.size());
    }
  }

 private:
  struct Place;
  bool isKnown(const Place& place) const {
    if (place.work < 0 || place.ran) return false;  // with the copies behind it
    return seen_[place.work] || times_.places[place.work] > 0;
  }

  // The middle half by time, without the first: that one finds nothing in caches. Of a few, all.
  std::vector<size_t> usualSteps() const {
    std::vector<size_t> steps(totals_.size());
    std::iota(steps.begin(), steps.end(), 0);
    if (steps.size() > 1) steps.erase(steps.begin());
    std::sort(steps.begin(), steps.end(), [&](size_t a, size_t b) { return totals_[a] < totals_[b]; });
    const ptrdiff_t quarter = steps.size() / 4;
    return {steps.begin() + quarter, steps.end() - quarter};
  }

  struct Place {
    int work = -1;
    int64_t current = 0;           // of this step
    bool ran = false;              // in this step
    std::vector<int64_t> ns = {};  // by step; 0: left out
  };

  const PassSample& sample_;
  WorkTimes& times_;
  std::vector<char> seen_;           // by work
  std::vector<size_t> first_place_;  // by instruction
  std::vector<Place> places_;
  std::vector<int64_t> totals_;  // by step
  NodeEvents events_;
  size_t first_ = 0;
  Clock::time_point start_, deadline_ = Clock::time_point::max();
};

// Says which observer the executor has: the rank lives longer than the timer of one of its times.
class Relay : public NodeObserver {
 public:
  NodeObserver* to = nullptr;
  void beginRun(size_t instruction) override {
    if (to != nullptr) to->beginRun(instruction);
  }
  bool beginNodes(std::span<const size_t> nodes, DeviceQueue& queue) override {
    return to == nullptr || to->beginNodes(nodes, queue);
  }
  void endNodes(std::span<const size_t> nodes, DeviceQueue& queue) override {
    if (to != nullptr) to->endNodes(nodes, queue);
  }
};

// A helper's: it leaves out everything once it has been told to stop.
class UntilStopped : public NodeObserver {
 public:
  explicit UntilStopped(const ProfilingPeer::Orders& orders) : orders_(orders) {}
  void beginRun(size_t) override {}
  bool beginNodes(std::span<const size_t>, DeviceQueue&) override { return !orders_.stopped(); }
  void endNodes(std::span<const size_t>, DeviceQueue&) override {}

 private:
  const ProfilingPeer::Orders& orders_;
};

ExecutorOptions executorOptions(const ProfilingOptions& options, NodeObserver& observer) {
  ExecutorOptions result;
  result.check_finite = false;
  result.kernels = options.kernels;
  result.device = options.device;
  result.observer = &observer;
  return result;
}

// Helper: runs what it is told to until it is stopped.
void keepBusy(std::span<const PassSample> samples, const ProfilingOptions& options,
              ProfilingPeer::Orders& orders) {
  const WorkerThreads threads(options.threads);
  UntilStopped observer(orders);
  while (const std::optional<int64_t> order = orders.next()) {
    StandaloneRank rank(samples[*order].image, executorOptions(options, observer));
    orders.answer();
    while (!orders.stopped()) rank.runStep();
    orders.answer();
  }
}

void measure(StandaloneRank& rank, Relay& relay, const PassSample& sample, int64_t share_ns,
             WorkTimes& times) {
  PassTimer timer(sample, times);
  relay.to = &timer;
  const Clock::time_point start = Clock::now();
  // The first step makes ready what is made ready only once; half of the time is left for others.
  timer.setDeadline(start + std::chrono::nanoseconds(share_ns / 2));
  rank.runStep();
  timer.endStep();
  const int64_t first = std::min(nsSince(start), share_ns / 2);
  const Clock::time_point warm = Clock::now();
  timer.setDeadline(warm + std::chrono::nanoseconds(share_ns - first));
  for (int64_t step = 1; step < kMostSteps; ++step) {
    rank.runStep();
    timer.endStep();
    const int64_t taken = nsSince(warm);
    if (first + taken + taken / step > share_ns) break;  // another one would be too long
  }
  relay.to = nullptr;
  timer.addToTimes();
}

}  // namespace

int64_t passBytes(const PassSample& sample, const ProfilingOptions& options) {
  const WorkerThreads threads(options.threads);
  ExecutorOptions executor_options;
  executor_options.kernels = options.kernels;
  executor_options.device = options.device;
  const Executor executor(sample.image, executor_options);
  return executor.memory().total_bytes + executor.constantBytes();
}

std::vector<OperatorTime> measurePasses(std::span<const PassSample> samples, size_t works,
                                        const ProfilingOptions& options, const ProfilingProgress& progress) {
  PIPESHARD_CHECK(options.workers == 1 || options.device == nullptr || options.device->isHostMemory(),
                  "{} workers on {}", options.workers, options.device->name());
  std::vector<std::unique_ptr<ProfilingPeer>> peers;  // before this process has threads of its own
  for (int worker = 1; worker < options.workers; ++worker) {
    peers.push_back(std::make_unique<ProfilingPeer>(
        [&](ProfilingPeer::Orders& orders) { keepBusy(samples, options, orders); }));
  }
  const WorkerThreads threads(options.threads);
  const Clock::time_point start = Clock::now();
  WorkTimes alone(works), busy(works);
  size_t left = samples.size() * (peers.empty() ? 1 : 2);
  const auto share = [&] {
    const int64_t rest = std::max<int64_t>(0, options.budget_ns - nsSince(start));
    return std::min(options.sample_ns, rest / static_cast<int64_t>(left--));
  };
  for (size_t s = 0; s < samples.size(); ++s) {
    Relay relay;
    StandaloneRank rank(samples[s].image, executorOptions(options, relay));
    measure(rank, relay, samples[s], share(), alone);
    if (!peers.empty()) {
      for (const auto& peer : peers) peer->tell(s);
      for (const auto& peer : peers) peer->awaitAnswer();
      measure(rank, relay, samples[s], share(), busy);
      for (const auto& peer : peers) peer->stop();
      for (const auto& peer : peers) peer->awaitAnswer();
    }
    if (progress) progress(s + 1, samples.size());
  }
  std::vector<OperatorTime> times;
  for (size_t work = 0; work < works; ++work)
    times.push_back({alone.mean(work), busy.mean(work), alone.repetitions[work]});
  return times;
}

}  // namespace pipeshard
