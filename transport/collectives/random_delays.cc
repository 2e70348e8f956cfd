#include "transport/collectives/random_delays.h"

#include <charconv>
#include <thread>

#include "ir/base/error.h"
#include "ir/base/hash.h"

namespace pipeshard {
namespace {

class DelayedSend : public SendHandle {
 public:
  DelayedSend(std::unique_ptr<SendHandle> handle, RandomDelays& delays)
      : handle_(std::move(handle)), delays_(delays) {}
  bool done() override { return handle_->done(); }
  void wait() override {
    delays_.pause();
    handle_->wait();
  }

 private:
  std::unique_ptr<SendHandle> handle_;
  RandomDelays& delays_;
};

class DelayedReceive : public ReceiveHandle {
 public:
  DelayedReceive(std::unique_ptr<ReceiveHandle> handle, RandomDelays& delays)
      : handle_(std::move(handle)), delays_(delays) {}
  void wait() override {
    delays_.pause();
    handle_->wait();
  }
  std::chrono::nanoseconds waited() const override { return handle_->waited(); }

 private:
  std::unique_ptr<ReceiveHandle> handle_;
  RandomDelays& delays_;
};

class DelayedCommunicator : public Communicator {
 public:
  DelayedCommunicator(Communicator& communicator, RandomDelays& delays)
      : inner_(communicator), delays_(delays) {}

  RankId rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::chrono::nanoseconds waited() const override { return inner_.waited(); }
  bool progress() override { return inner_.progress(); }
  void interrupt() override { inner_.interrupt(); }
  void whileWaiting(const std::function<bool()>& work) override { inner_.whileWaiting(work); }

  std::unique_ptr<SendHandle> send(RankId peer, std::span<const std::byte> data) override {
    const Pauses pauses(delays_);
    return std::make_unique<DelayedSend>(inner_.send(peer, data), delays_);
  }
  void receive(RankId peer, std::span<std::byte> data) override {
    const Pauses pauses(delays_);
    inner_.receive(peer, data);
  }
  std::unique_ptr<ReceiveHandle> postReceive(RankId peer, std::span<std::byte> data) override {
    const Pauses pauses(delays_);
    return std::make_unique<DelayedReceive>(inner_.postReceive(peer, data), delays_);
  }
  void allReduce(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                 size_t count) override {
    const Pauses pauses(delays_);
    inner_.allReduce(group, type, reduction, input, output, count);
  }
  void allGather(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    const Pauses pauses(delays_);
    inner_.allGather(group, type, input, output, count);
  }
  void reduceScatter(const Group& group, DataType type, Reduction reduction, const void* input, void* output,
                     size_t count) override {
    const Pauses pauses(delays_);
    inner_.reduceScatter(group, type, reduction, input, output, count);
  }
  void allToAll(const Group& group, DataType type, const void* input, void* output, size_t count) override {
    const Pauses pauses(delays_);
    inner_.allToAll(group, type, input, output, count);
  }
  void broadcast(const Group& group, DataType type, int root, void* data, size_t count) override {
    const Pauses pauses(delays_);
    inner_.broadcast(group, type, root, data, count);
  }
  void barrier(const Group& group) override {
    const Pauses pauses(delays_);
    inner_.barrier(group);
  }

 private:
  // One before, one after.
  struct Pauses {
    explicit Pauses(RandomDelays& of) : delays(of) { delays.pause(); }
    ~Pauses() { delays.pause(); }
    RandomDelays& delays;
  };

  Communicator& inner_;
  RandomDelays& delays_;
};

}  // namespace

RandomDelays::RandomDelays(uint64_t seed, RankId rank, std::chrono::microseconds longest)
    : seed_(mixBits(mixBits(seed) + rank.index())), longest_(longest) {}

void RandomDelays::pause() {
  const uint64_t random = mixBits(seed_ + calls_.fetch_add(1, std::memory_order_relaxed));
  const int64_t share = random >> 40;  // of 2^24
  const uint64_t choice = random % 32;
  if (choice < 20) return;
  if (choice < 28) return std::this_thread::yield();
  const std::chrono::nanoseconds longest = choice < 31 ? longest_ / 10 : longest_;
  std::this_thread::sleep_for(longest * share / (int64_t{1} << 24));
}

RandomDelaysText parseRandomDelays(std::string_view text) {
  const size_t colon = text.find(':');
  RandomDelaysText parsed;
  int64_t microseconds = -1;
  const auto read = [](std::string_view part, auto& number) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    return error == std::errc() && end == part.data() + part.size();
  };
  if (colon == std::string_view::npos || !read(text.substr(0, colon), parsed.seed) ||
      !read(text.substr(colon + 1), microseconds) || microseconds < 0) {
    fail(ErrorCode::kUsage, "{}={}: expected SEED:MICROSECONDS", kRandomDelaysVariable, text);
  }
  parsed.longest = std::chrono::microseconds(microseconds);
  return parsed;
}

std::unique_ptr<Communicator> delayCommunicator(Communicator& communicator, RandomDelays& delays) {
  return std::make_unique<DelayedCommunicator>(communicator, delays);
}

}  // namespace pipeshard
