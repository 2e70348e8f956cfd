// Ranks as threads on one mapping of the control segment, so that ThreadSanitizer sees both sides of every
// counter.
#include "transport/shared/shared_endpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <exception>
#include <numeric>
#include <thread>

#include "transport/shared/early_receiver.h"
#include "transport/shared/shared_collectives.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard::shm {
namespace {

using namespace std::chrono_literals;

// Runs body(endpoint) for every rank in a thread of its own; errors end the test.
template <typename Body>
void runThreads(int size, Body&& body) {
  SharedSegments segments = SharedSegments::create(size);
  const auto control =
      std::make_shared<Mapping>(Mapping::map(segments.controlDescriptor(), controlBytes(size), true, "test"));
  std::vector<std::string> errors(size);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      std::string text = fmt::format("control={}", ::dup(segments.controlDescriptor()));
      for (int other = 0; other < size; ++other)
        text += fmt::format("{}{}", other == 0 ? ",arenas=" : ":",
                            ::dup(segments.arenaDescriptor(RankId(other))));
      threads.emplace_back([&, rank, text] {
        try {
          Endpoint endpoint(SharedSegments::inherit(text), control, RankId(rank), 20s);
          body(endpoint);
        } catch (const std::exception& error) {
          errors[rank] = error.what();
        }
      });
    }
  }
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(SharedEndpoint, MessagesBetweenThreadsAreOrderedByTheirCounters) {
  runThreads(2, [](Endpoint& endpoint) {
    const int self = endpoint.rank().index();
    const RankId peer(1 - self);
    const auto arena = endpoint.createArena(1 << 20);
    std::vector<std::byte> heap(300000);
    std::vector<std::byte> got(300000);
    for (int round = 0; round < 100; ++round) {
      const auto value = static_cast<std::byte>(round + self);
      const size_t bytes = static_cast<size_t>(round) * 3000;
      std::fill(heap.begin(), heap.end(), value);
      std::fill(arena.begin(), arena.begin() + 300000, value);
      const Ticket staged =
          endpoint.post(Channel::kPointToPoint, peer, Operation::kSend, {heap.data(), bytes});
      const Ticket direct = endpoint.post(Channel::kPointToPoint, peer, Operation::kSend, arena.first(bytes));
      for (int message = 0; message < 2; ++message) {
        IncomingMessage(endpoint, Channel::kPointToPoint, peer, Operation::kSend, bytes, {&peer, 1})
            .copyTo(got.data());
        for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(got[i], static_cast<std::byte>(round + 1 - self));
      }
      for (const Ticket& ticket : {staged, direct}) {
        endpoint.await({Operation::kSend, "test", peer, bytes, {&peer, 1}},
                       [&] { return endpoint.completed(ticket); });
      }
    }
  });
}

// Mailboxes pass from the rank's thread to its receiver's and back, at any moment.
TEST(SharedEndpoint, AnEarlyReceiverTakesMessagesBesideItsRank) {
  runThreads(2, [](Endpoint& endpoint) {
    EarlyReceiver receiver(endpoint);
    const int self = endpoint.rank().index();
    const RankId peer(1 - self);
    const auto arena = endpoint.createArena(1 << 20);
    std::vector<std::byte> heap(300000), got(300000);
    for (int round = 0; round < 300; ++round) {
      const auto value = static_cast<std::byte>(round + self);
      const size_t bytes = static_cast<size_t>(round) * 1000;
      const bool staged = round % 2 == 0;
      const std::span<std::byte> from = staged ? std::span(heap) : arena.first(heap.size());
      std::fill(from.begin(), from.end(), value);
      EarlyMessage message{.source = peer, .to = std::span(got).first(bytes)};
      const bool posted = round % 3 != self;
      if (posted) receiver.post(message);
      const Ticket ticket = endpoint.post(Channel::kPointToPoint, peer, Operation::kSend, from.first(bytes));
      if (round % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      if (round % 7 == 0) barrier(endpoint, idsAt<RankId>({0, 1}));
      if (posted) receiver.takeOver(message);
      if (!message.finished) {
        IncomingMessage rest(endpoint, Channel::kPointToPoint, peer, Operation::kSend, bytes, {&peer, 1});
        rest.resume(message.position);
        rest.copyTo(got.data());
      }
      if (posted) receiver.release(message);
      for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(got[i], static_cast<std::byte>(round + 1 - self));
      endpoint.await({Operation::kSend, "test", peer, bytes, {&peer, 1}},
                     [&] { return endpoint.completed(ticket); });
    }
  });
}

TEST(SharedEndpoint, CollectivesBetweenThreadsAreOrderedByTheirCounters) {
  runThreads(3, [](Endpoint& endpoint) {
    const Group group = idsAt<RankId>({0, 1, 2});
    for (const size_t count : {10, 5000, 200000}) {
      std::vector<int64_t> data(count);
      for (int round = 0; round < 5; ++round) {
        std::iota(data.begin(), data.end(), endpoint.rank().index() + round);
        allReduce(endpoint, group, DataType::kInt64, Reduction::kSum, data.data(), data.data(), data.size());
        for (size_t i = 0; i < data.size(); ++i)
          ASSERT_EQ(data[i], static_cast<int64_t>(3 * i) + 3 * round + 3);
        barrier(endpoint, group);
      }
    }
  });
}

TEST(SharedEndpoint, SmallMessagesAreNotLostBySleepers) {
  runThreads(4, [](Endpoint& endpoint) {
    const Group group = idsAt<RankId>({0, 1, 2, 3});
    for (int round = 0; round < 3000; ++round) barrier(endpoint, group);
  });
}

}  // namespace
}  // namespace pipeshard::shm
