#include "runtime/profiling/profiling_links.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <thread>

#include "ir/base/error.h"
#include "runtime/profiling/profiling_peer.h"
#include "transport/shared/shared_memory.h"
#include "transport/shared/shared_segments.h"
#include "transport/wire/host_relay.h"
#include "transport/wire/wire_communicator.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeout = 30s;
constexpr int64_t kSmallest = 256;

// Addresses of two hosts, in memory that a fork shares.
class ForkedStore {
 public:
  ForkedStore() {
    void* memory =
        ::mmap(nullptr, 2 * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail(ErrorCode::kOutOfMemory, "no memory for two addresses");
    entries_ = new (memory) Entry[2]{};
  }
  ~ForkedStore() { ::munmap(entries_, 2 * sizeof(Entry)); }
  ForkedStore(const ForkedStore&) = delete;
  ForkedStore& operator=(const ForkedStore&) = delete;

  // Returns when both have called it.
  void meet() {
    entries_[0].met.fetch_add(1);
    const auto end = Clock::now() + kTimeout;
    while (entries_[0].met.load() < 2) {
      if (Clock::now() > end) fail(ErrorCode::kPeerUnavailable, "the other host does not come");
      std::this_thread::sleep_for(1ms);
    }
  }
  void set(int host, const std::string& bytes) {
    Entry& entry = entries_[host];
    PIPESHARD_CHECK(bytes.size() <= entry.data.size(), "an address of {} bytes", bytes.size());
    std::memcpy(entry.data.data(), bytes.data(), bytes.size());
    entry.bytes.store(bytes.size(), std::memory_order_release);
  }

  std::string get(int host) const {
    const Entry& entry = entries_[host];
    const auto end = Clock::now() + kTimeout;
    while (true) {
      const size_t bytes = entry.bytes.load(std::memory_order_acquire);
      if (bytes > 0) return {entry.data.data(), bytes};
      if (Clock::now() > end) fail(ErrorCode::kPeerUnavailable, "host {} has no address", host);
      std::this_thread::sleep_for(1ms);
    }
  }

 private:
  struct Entry {
    std::atomic<size_t> bytes{0};
    std::atomic<int> met{0};
    std::array<char, 1 << 10> data{};
  };
  Entry* entries_ = nullptr;
};

enum class Work : uint8_t { kSend, kAllReduce, kAllGather, kReduceScatter, kAllToAll, kEnd };

struct Side {
  std::unique_ptr<HostRelay> relay;  // between hosts
  std::unique_ptr<Communicator> communicator;
  std::span<std::byte> memory;  // room for the largest input and output
  std::vector<std::byte> heap;

  std::byte* input() const { return memory.data(); }
  std::byte* output() const { return memory.data() + memory.size() / 2; }

  Group all() const { return idsBelow<RankId>(communicator->size()); }

  // `bytes` as CollectiveCost counts them, of float32 over all ranks.
  void perform(Work work, int64_t bytes) const {
    const Group group = all();
    const size_t part = static_cast<size_t>(bytes) / sizeof(float) / group.size();
    const size_t count = static_cast<size_t>(bytes) / sizeof(float);
    constexpr DataType kType = DataType::kFloat32;
    switch (work) {
      case Work::kSend: return transfer(bytes);
      case Work::kAllReduce:
        return communicator->allReduce(group, kType, Reduction::kSum, input(), input(), count);
      case Work::kAllGather: return communicator->allGather(group, kType, input(), output(), part);
      case Work::kReduceScatter:
        return communicator->reduceScatter(group, kType, Reduction::kSum, input(), output(), part);
      case Work::kAllToAll: return communicator->allToAll(group, kType, input(), output(), part);
      case Work::kEnd: return;
    }
  }

 private:
  void transfer(size_t bytes) const {
    if (communicator->rank() == RankId(0)) {
      communicator->send(RankId(1), {input(), bytes})->wait();
    } else if (communicator->rank() == RankId(1)) {
      communicator->receive(RankId(0), {output(), bytes});
    }
  }
};

int64_t repetitions(int64_t bytes) { return std::clamp<int64_t>((int64_t{4} << 20) / bytes, 1, 50); }

struct Order {
  Work work;
  int64_t bytes;
};

// Another rank: what rank 0 announces, until it announces the end.
void follow(const Side& side) {
  while (true) {
    Order order{};
    side.communicator->receive(RankId(0), std::as_writable_bytes(std::span(&order, 1)));
    if (order.work == Work::kEnd) return;
    for (int64_t i = 0; i < repetitions(order.bytes); ++i) side.perform(order.work, order.bytes);
  }
}

void announce(const Side& side, Order order) {
  for (RankId peer : IdRange(RankId(1), RankId(side.communicator->size())))
    side.communicator->send(peer, std::as_bytes(std::span(&order, 1)))->wait();
}

CostCurve measure(const Side& side, Work work, int64_t most_bytes) {
  constexpr size_t kBatches = 7;
  CostCurve curve;
  for (int64_t bytes = kSmallest; bytes <= most_bytes; bytes *= 4) {
    std::vector<int64_t> times;
    for (size_t batch = 0; batch < kBatches + 1; ++batch) {
      announce(side, {work, bytes});
      const auto start = Clock::now();
      for (int64_t i = 0; i < repetitions(bytes); ++i) side.perform(work, bytes);
      const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
      if (batch > 0) times.push_back(ns / repetitions(bytes));  // the first one warms up
    }
    std::sort(times.begin(), times.end());
    const int64_t least = curve.points.empty() ? 1 : curve.points.back().ns;
    curve.points.push_back({bytes, std::max(least, times[kBatches / 2])});
  }
  return curve;
}

LinkTimes measureAll(const Side& side, int64_t most_bytes) {
  LinkTimes times;
  times.send = measure(side, Work::kSend, most_bytes);
  times.all_reduce = measure(side, Work::kAllReduce, most_bytes);
  times.all_gather = measure(side, Work::kAllGather, most_bytes);
  times.reduce_scatter = measure(side, Work::kReduceScatter, most_bytes);
  times.all_to_all = measure(side, Work::kAllToAll, most_bytes);
  announce(side, {Work::kEnd, 0});
  return times;
}

}  // namespace

LinkTimes measureInside(int64_t most_bytes, int ranks) {
  SharedSegments segments = SharedSegments::create(ranks);
  const std::string inherited = segments.describe();
  const auto open = [&](SharedSegments own, RankId rank) {
    auto communicator = SharedMemoryCommunicator::open(std::move(own), rank, kTimeout);
    Side side;
    side.memory = communicator->createArena(2 * most_bytes);
    std::memset(side.memory.data(), 0, side.memory.size());
    side.communicator = std::move(communicator);
    return side;
  };
  std::vector<std::unique_ptr<ProfilingPeer>> peers;
  for (RankId rank : IdRange(RankId(1), RankId(ranks))) {
    peers.push_back(std::make_unique<ProfilingPeer>(
        [&, rank](ProfilingPeer::Orders&) { follow(open(SharedSegments::inherit(inherited), rank)); }));
  }
  return measureAll(open(std::move(segments), RankId(0)), most_bytes);
}

CostCurve measureBetween(int64_t most_bytes) {
  ForkedStore store;
  const auto open = [&](RankId rank) {
    const int host = static_cast<int>(rank.index());
    Side side;
    side.relay = HostRelay::open({host, {0, 1}, "127.0.0.1"});
    const int end = side.relay->attach(rank, 0);
    store.set(host, side.relay->address().endpoint + " " + side.relay->address().public_key);
    const std::string other = store.get(1 - host);
    const size_t blank = other.find(' ');
    side.relay->introduce({{1 - host, {other.substr(0, blank), other.substr(blank + 1)}}});
    store.meet();
    side.relay->connect();
    side.communicator = openWire({.rank = rank, .size = 2, .descriptor = end, .timeout = kTimeout});
    side.heap.resize(2 * most_bytes);
    side.memory = side.heap;
    return side;
  };
  const ProfilingPeer peer([&](ProfilingPeer::Orders& orders) {
    const Side side = open(RankId(1));
    follow(side);
    orders.next();  // until it is killed: the announcement of the end is still to be acknowledged
  });
  const Side side = open(RankId(0));
  CostCurve send = measure(side, Work::kSend, most_bytes);
  announce(side, {Work::kEnd, 0});
  return send;
}

}  // namespace pipeshard
