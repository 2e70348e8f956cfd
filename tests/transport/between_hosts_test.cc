// Failures and loads as they look between hosts, over every transport that works there.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <optional>
#include <thread>

#include "tests/transport/ranks.h"
#include "tests/transport/shared_store.h"
#include "tests/transport/transports.h"

namespace pipeshard::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class BetweenHosts : public ::testing::TestWithParam<Transport> {
 protected:
  // The body owns its communicator. `meanwhile` as in runRanks.
  static std::vector<RankResult> runOwners(int size, std::chrono::milliseconds timeout,
                                           const std::function<void(std::unique_ptr<Communicator>)>& body,
                                           const Meanwhile& meanwhile = nullptr) {
    const auto job = GetParam().make(size);
    return runRanks(
        size, [&](int rank) { body(job->open(RankId(rank), timeout)); }, 40s,
        [&](const std::vector<pid_t>& ranks) {
          // What the launcher has of the ranks' ends would hide that a rank is dead.
          for (int rank = 0; rank < size; ++rank) job->markDead(RankId(rank));
          if (meanwhile) meanwhile(ranks);
        });
  }
  static std::vector<RankResult> run(int size, std::chrono::milliseconds timeout,
                                     const std::function<void(Communicator&)>& body,
                                     const Meanwhile& meanwhile = nullptr) {
    return runOwners(
        size, timeout, [&](std::unique_ptr<Communicator> communicator) { body(*communicator); }, meanwhile);
  }
};

TEST_P(BetweenHosts, ADeathIsKnownAtOnceAndHarmsOnlyWhoNeedsTheDead) {
  const auto results = run(3, 20s, [](Communicator& communicator) {
    std::byte word{};
    communicator.barrier(idsAt<RankId>({0, 1, 2}));
    if (communicator.rank() == RankId(2)) {
      // what it sent for the barrier may still be on its way
      std::this_thread::sleep_for(100ms);
      ::kill(::getpid(), SIGKILL);
    }
    std::this_thread::sleep_for(300ms);
    // The two survivors can go on with each other.
    if (communicator.rank() == RankId(0)) communicator.send(RankId(1), {&word, 1})->wait();
    if (communicator.rank() == RankId(1)) communicator.receive(RankId(0), {&word, 1});
    const auto start = Clock::now();
    try {
      communicator.barrier(idsAt<RankId>({0, 1, 2}));
    } catch (const Error&) {
      require(Clock::now() - start < 1s, "the death became known late");
      throw;
    }
  });
  expectError(results[0], ErrorCode::kPeerUnavailable, {"barrier", "rank 2 has died"});
  expectError(results[1], ErrorCode::kPeerUnavailable, {"barrier", "rank 2 has died"});
}

TEST_P(BetweenHosts, SendingToTheDeadIsNoSignal) {
  const auto results = run(2, 20s, [](Communicator& communicator) {
    // Rank 1 dies among the sends: both have opened, and what it sent for the barrier has arrived.
    communicator.barrier(idsAt<RankId>({0, 1}));
    if (communicator.rank() == RankId(1)) {
      std::this_thread::sleep_for(100ms);
      ::kill(::getpid(), SIGKILL);
    }
    const std::vector<std::byte> small(1000);
    const std::vector<std::byte> large(1 << 20);
    std::vector<std::unique_ptr<SendHandle>> handles;
    for (int i = 0; i < 100; ++i) {
      handles.push_back(communicator.send(RankId(1), i % 2 == 0 ? small : large));
      std::this_thread::sleep_for(2ms);
    }
    handles.back()->wait();
  });
  expectError(results[0], ErrorCode::kPeerUnavailable, {"send of 1048576 bytes", "rank 1 has died"});
}

TEST_P(BetweenHosts, ARankThatStopsInTheMiddleOfAMessageIsAHang) {
  for (const bool stop_receiver : {false, true}) {
    const int stopped = stop_receiver ? 1 : 0;
    Arrivals opened(2), gave_up(1);
    const auto results = run(
        2, 600ms,
        [&](Communicator& communicator) {
          const int rank = communicator.rank().index();
          opened.here(rank);
          std::optional<HereAtEnd> here;
          if (rank != stopped) here.emplace(gave_up, 0);
          std::vector<std::byte> data(64 << 20);
          while (true) {
            if (communicator.rank() == RankId(0)) communicator.send(RankId(1), data)->wait();
            if (communicator.rank() == RankId(1)) communicator.receive(RankId(0), data);
          }
        },
        [&](const std::vector<pid_t>& ranks) {
          opened.waitForAll();
          std::this_thread::sleep_for(400ms);
          ::kill(ranks[stopped], SIGSTOP);
          gave_up.waitForAll();
          ::kill(ranks[stopped], SIGKILL);
        });
    const std::string name = fmt::format("rank {}", stopped);
    expectError(results[1 - stopped], ErrorCode::kHang, {name, "67108864 bytes", "600 ms"});
  }
}

TEST_P(BetweenHosts, ManyLargeSendsBothWaysDoNotDeadlock) {
  expectSuccess(run(2, 20s, [](Communicator& communicator) {
    const int self = communicator.rank().index(), peer = 1 - self;
    const std::vector<std::byte> out(3 << 20, static_cast<std::byte>(self + 1));
    std::vector<std::unique_ptr<SendHandle>> handles;
    for (int i = 0; i < 40; ++i) handles.push_back(communicator.send(RankId(peer), out));
    std::vector<std::byte> in(out.size());
    for (int i = 0; i < 40; ++i) {
      std::fill(in.begin(), in.end(), std::byte{0});
      communicator.receive(RankId(peer), in);
      require(in.front() == static_cast<std::byte>(peer + 1) && in.back() == in.front(), "message {}", i);
    }
    for (const auto& handle : handles) handle->wait();
  }));
}

// More small messages than may be under way: the rest is announced and waits at the sender.
TEST_P(BetweenHosts, SmallMessagesBeyondTheWindowArriveInOrder) {
  expectSuccess(run(2, 20s, [](Communicator& communicator) {
    constexpr uint32_t kMessages = 4000;
    std::vector<uint32_t> words(kMessages * 256);
    for (uint32_t i = 0; i < kMessages; ++i) words[i * 256] = i;
    std::vector<std::unique_ptr<SendHandle>> handles;
    const auto bytes = std::as_writable_bytes(std::span(words));
    for (size_t i = 0; i < kMessages && communicator.rank() == RankId(0); ++i) {
      handles.push_back(communicator.send(RankId(1), bytes.subspan(i * 1024, i % 3 == 0 ? 4 : 1024)));
    }
    std::array<uint32_t, 256> word;
    for (uint32_t i = 0; i < kMessages && communicator.rank() == RankId(1); ++i) {
      communicator.receive(RankId(0), std::as_writable_bytes(std::span(word)).first(i % 3 == 0 ? 4 : 1024));
      require(word[0] == i, "message {} where {} was expected", word[0], i);
    }
    for (const auto& handle : handles) handle->wait();
  }));
}

TEST_P(BetweenHosts, ClosingIsQuickWithSendsOutstandingAndPeersStopped) {
  Arrivals opened(3), closed(1);
  const auto results = runOwners(
      3, 20s,
      [&](std::unique_ptr<Communicator> communicator) {
        const size_t rank = communicator->rank().index();
        const std::vector<std::byte> large(32 << 20);
        const std::vector<std::byte> small(100);
        std::vector<std::unique_ptr<SendHandle>> handles;
        opened.here(static_cast<int>(rank));
        opened.waitForAll();
        if (rank == 1) ::kill(::getpid(), SIGSTOP);
        if (rank == 2) return closed.waitForAll();
        const HereAtEnd here(closed, 0);
        std::this_thread::sleep_for(200ms);
        for (int peer : {1, 2}) {
          for (int i = 0; i < 5; ++i)
            handles.push_back(communicator->send(RankId(peer), i % 2 == 0 ? large : small));
        }
        const auto start = Clock::now();
        communicator.reset();
        require(Clock::now() - start < 5s, "closing took long");
      },
      [&](const std::vector<pid_t>& ranks) {
        closed.waitForAll();
        ::kill(ranks[1], SIGKILL);
      });
  EXPECT_EQ(results[0].exit_code, 0) << results[0].error;
  EXPECT_EQ(results[2].exit_code, 0) << results[2].error;
}

std::vector<Transport> transportsBetweenHosts() {
  std::vector<Transport> found = allTransports();
  std::erase_if(found, [](const Transport& transport) {
    return !transport.connects || transport.name.find("oined") != std::string::npos;
  });
  return found;
}

INSTANTIATE_TEST_SUITE_P(Transports, BetweenHosts, ::testing::ValuesIn(transportsBetweenHosts()),
                         transportName);

}  // namespace
}  // namespace pipeshard::testing
