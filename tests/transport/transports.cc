#include "tests/transport/transports.h"

#include <numeric>

#include "transport/shared_memory.h"

namespace pipeshard::testing {
namespace {

constexpr size_t kOwnBytes = size_t{96} << 20;

class SharedMemoryJob : public TransportJob {
 public:
  explicit SharedMemoryJob(int size) : segments_(SharedSegments::create(size)) {}
  std::unique_ptr<Communicator> open(int rank, std::chrono::milliseconds timeout) override {
    return SharedMemoryCommunicator::open(SharedSegments::inherit(segments_.describe()), rank, timeout);
  }
  std::span<std::byte> ownMemory(Communicator& communicator, size_t bytes) override {
    return dynamic_cast<SharedMemoryCommunicator&>(communicator).createArena(bytes);
  }
  void markDead(int rank) override { segments_.markDead(rank); }

 private:
  SharedSegments segments_;
};

std::byte patternByte(size_t position, size_t seed) {
  return static_cast<std::byte>((position * 131 + (position >> 8) * 7 + seed * 29 + 3) & 0xff);
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Transport& transport) { return stream << transport.name; }

std::vector<Transport> allTransports() {
  const auto shared = [](int size) { return std::make_unique<SharedMemoryJob>(size); };
  return {{"SharedMemoryArena", true, shared}, {"SharedMemoryHeap", false, shared}};
}

std::string transportName(const ::testing::TestParamInfo<Transport>& info) { return info.param.name; }

Rank::Rank(TransportJob& job, const Transport& transport, int rank, std::chrono::milliseconds timeout)
    : communicator_(job.open(rank, timeout)), use_own_(transport.own_memory) {
  if (use_own_) own_ = job.ownMemory(*communicator_, kOwnBytes);
}

Group Rank::everybody() const {
  Group group(static_cast<size_t>(size()));
  std::iota(group.begin(), group.end(), 0);
  return group;
}

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
    require(data[i] == patternByte(i, seed), "byte {} of {} is {}, expected {}", i, data.size(), static_cast<int>(data[i]),
            static_cast<int>(patternByte(i, seed)));
  }
}

std::vector<RankResult> TransportTest::run(int size, const std::function<void(Rank&)>& body, std::chrono::milliseconds timeout) {
  const auto job = GetParam().make(size);
  return runRanks(size, [&](int number) {
    Rank rank(*job, GetParam(), number, timeout);
    body(rank);
  });
}

}  // namespace pipeshard::testing
