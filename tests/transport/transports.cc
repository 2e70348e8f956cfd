#include "tests/transport/transports.h"

#include "tests/transport/shared_store.h"
#include "tests/transport/wire_hosts.h"
#include "transport/collectives/joined_communicator.h"
#include "transport/gloo/gloo_communicator.h"
#include "transport/shared/shared_memory.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard::testing {
namespace {

constexpr size_t kOwnBytes = size_t{96} << 20;

class SharedMemoryJob : public TransportJob {
 public:
  explicit SharedMemoryJob(int size) : segments_(SharedSegments::create(size)) {}
  std::unique_ptr<Communicator> open(RankId rank, std::chrono::milliseconds timeout) override {
    return SharedMemoryCommunicator::open(SharedSegments::inherit(segments_.describe()), rank, timeout);
  }
  std::span<std::byte> ownMemory(Communicator& communicator, size_t bytes) override {
    return dynamic_cast<SharedMemoryCommunicator&>(communicator).createArena(bytes);
  }
  std::unique_ptr<Communicator> openSecond(Communicator& first, std::chrono::milliseconds) override {
    return dynamic_cast<SharedMemoryCommunicator&>(first).openSecond();
  }
  void markDead(RankId rank) override { segments_.markDead(rank); }

 private:
  SharedSegments segments_;
};

// Ranks may be slow to start; a rank that never does is waited for this long.
constexpr std::chrono::milliseconds kConnectTimeout{2000};

class GlooJob : public TransportJob {
 public:
  explicit GlooJob(int size) : store_(size) {}
  std::unique_ptr<Communicator> open(RankId rank, std::chrono::milliseconds timeout) override {
    return openGloo({rank, store_.size(), "127.0.0.1", timeout, std::max(timeout, kConnectTimeout)}, store_);
  }
  std::unique_ptr<Communicator> openSecond(Communicator& first, std::chrono::milliseconds timeout) override {
    return openGloo(
        {first.rank(), store_.size(), "127.0.0.1", timeout, std::max(timeout, kConnectTimeout), "second"},
        store_);
  }
  void markDead(RankId) override {}

 private:
  SharedStore store_;
};

class WireJob : public TransportJob {
 public:
  explicit WireJob(const IdVector<RankId, int>& host_of_rank) : hosts_(host_of_rank) {}
  std::unique_ptr<Communicator> open(RankId rank, std::chrono::milliseconds timeout) override {
    return hosts_.open(rank, 0, timeout, std::max(timeout, kConnectTimeout));
  }
  std::unique_ptr<Communicator> openSecond(Communicator& first, std::chrono::milliseconds timeout) override {
    return hosts_.open(first.rank(), 1, timeout, std::max(timeout, kConnectTimeout));
  }
  void markDead(RankId rank) override { hosts_.letGo(rank); }

 private:
  WireHosts hosts_;
};

// Ranks with even numbers on one node, those with odd numbers on another: two ranks are on different nodes.
class JoinedJob : public TransportJob {
 public:
  JoinedJob(int size, std::unique_ptr<TransportJob> between)
      : between_(std::move(between)), node_of_rank_(hostsOf(size, 2)) {
    for (int node = 0; node < std::min(2, size); ++node) {
      segments_.push_back(SharedSegments::create(ranksOnNode(node_of_rank_, RankId(node)).size()));
    }
  }
  std::unique_ptr<Communicator> open(RankId rank, std::chrono::milliseconds timeout) override {
    const std::vector<RankId> names = ranksOnNode(node_of_rank_, rank);
    std::unique_ptr<SharedMemoryCommunicator> on_node;
    if (names.size() > 1) {
      SharedSegments& segments = segments_[nodeOf(rank)];
      on_node = SharedMemoryCommunicator::open(SharedSegments::inherit(segments.describe()), localOf(rank),
                                               timeout, names);
    }
    on_node_ = on_node.get();
    return joinCommunicators(node_of_rank_, rank, std::move(on_node), between_->open(rank, timeout));
  }
  std::unique_ptr<Communicator> openSecond(Communicator& first, std::chrono::milliseconds timeout) override {
    return joinCommunicators(node_of_rank_, first.rank(),
                             on_node_ == nullptr ? nullptr : on_node_->openSecond(),
                             between_->openSecond(first, timeout));
  }
  void markDead(RankId rank) override {
    segments_[nodeOf(rank)].markDead(localOf(rank));
    between_->markDead(rank);
  }

 private:
  static size_t nodeOf(RankId rank) { return rank.index() % 2; }
  static RankId localOf(RankId rank) { return RankId(rank.index() / 2); }

  std::unique_ptr<TransportJob> between_;
  IdVector<RankId, int> node_of_rank_;
  std::vector<SharedSegments> segments_;
  SharedMemoryCommunicator* on_node_ = nullptr;  // in a rank
};

std::byte patternByte(size_t position, size_t seed) {
  return static_cast<std::byte>((position * 131 + (position >> 8) * 7 + seed * 29 + 3) & 0xff);
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Transport& transport) {
  return stream << transport.name;
}

std::vector<Transport> allTransports() {
  const auto shared = [](int size) { return std::make_unique<SharedMemoryJob>(size); };
  const auto gloo = [](int size) { return std::make_unique<GlooJob>(size); };
  const auto joined = [](int size) {
    return std::make_unique<JoinedJob>(size, std::make_unique<GlooJob>(size));
  };
  const auto wire = [](int size) { return std::make_unique<WireJob>(hostsOf(size, size)); };
  const auto wire_joined = [](int size) {
    return std::make_unique<JoinedJob>(size, std::make_unique<WireJob>(hostsOf(size, 2)));
  };
  return {{"SharedMemoryArena", true, false, shared},
          {"SharedMemoryHeap", false, false, shared},
          {"Gloo", false, true, gloo},
          {"Joined", false, true, joined},
          {"Wire", false, true, wire},
          {"WireJoined", false, true, wire_joined}};
}

std::string transportName(const ::testing::TestParamInfo<Transport>& info) { return info.param.name; }

Rank::Rank(TransportJob& job, const Transport& transport, RankId rank, std::chrono::milliseconds timeout)
    : job_(job), communicator_(job.open(rank, timeout)), use_own_(transport.own_memory) {
  if (use_own_) own_ = job.ownMemory(*communicator_, kOwnBytes);
}

Group Rank::everybody() const { return idsBelow<RankId>(size()); }

std::byte* Rank::allocate(size_t bytes) {
  if (!use_own_) {
    heap_.push_back(std::make_unique<std::byte[]>(bytes + 64));
    const auto address = reinterpret_cast<uintptr_t>(heap_.back().get());
    return reinterpret_cast<std::byte*>((address + 63) / 64 * 64);
  }
  require(used_ + bytes <= own_.size(), "the test needs more than {} bytes", own_.size());
  std::byte* memory = own_.data() + used_;
  used_ += (bytes + 63) / 64 * 64;
  if (bytes > 0) std::memset(memory, 0, bytes);
  return memory;
}

std::span<std::byte> Rank::pattern(size_t bytes, size_t seed) {
  const std::span<std::byte> data{allocate(bytes), bytes};
  for (size_t i = 0; i < bytes; ++i) data[i] = patternByte(i, seed);
  return data;
}

void Rank::release() {
  used_ = 0;
  heap_.clear();
}

void requirePattern(std::span<const std::byte> data, size_t seed) {
  for (size_t i = 0; i < data.size(); ++i) {
    require(data[i] == patternByte(i, seed), "byte {} of {} is {}, expected {}", i, data.size(), data[i],
            patternByte(i, seed));
  }
}

std::vector<RankResult> TransportTest::run(int size, const std::function<void(Rank&)>& body,
                                           std::chrono::milliseconds timeout) {
  const auto job = GetParam().make(size);
  return runRanks(size, [&](int number) {
    Rank rank(*job, GetParam(), RankId(number), timeout);
    body(rank);
  });
}

}  // namespace pipeshard::testing
