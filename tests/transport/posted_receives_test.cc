// Receives that are posted before their messages: the bytes come while the rank does something else, and what
// goes wrong is said by wait().
#include <signal.h>

#include <array>
#include <random>
#include <thread>

#include "tests/transport/shared_store.h"
#include "tests/transport/transports.h"

namespace pipeshard::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using PostedReceives = TransportTest;

// Another thread writes them meanwhile.
#if defined(__clang__) || defined(__GNUC__)
__attribute__((no_sanitize("thread")))
#endif
bool areThere(const volatile std::byte* data, const std::byte* wanted, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != wanted[i]) return false;
  }
  return true;
}

// This thread touches the communicator no more: others bring the bytes, or nobody does.
void awaitBytes(std::span<const std::byte> data, std::span<const std::byte> wanted) {
  const auto deadline = Clock::now() + 20s;
  while (!areThere(data.data(), wanted.data(), data.size())) {
    require(Clock::now() < deadline, "{} bytes did not come before wait()", data.size());
    std::this_thread::sleep_for(1ms);
  }
}

const std::vector<size_t> kSizes = {1, 4096, 65537, 300000, (8 << 20) + 3};

TEST_P(PostedReceives, TheBytesComeWhileTheReceivingRankDoesSomethingElse) {
  expectSuccess(run(2, [](Rank& rank) {
    for (const bool posted_first : {true, false}) {
      for (size_t i = 0; i < kSizes.size(); ++i) {
        const size_t bytes = kSizes[i];
        const auto pattern = rank.pattern(bytes, i + 1);
        if (rank.rank() == 0) {
          if (posted_first) rank->barrier(idsAt<RankId>({0, 1}));
          const auto send = rank->send(RankId(1), pattern);
          if (!posted_first) rank->barrier(idsAt<RankId>({0, 1}));
          send->wait();
        } else {
          const std::span<std::byte> data{rank.allocate(bytes), bytes};
          if (!posted_first) rank->barrier(idsAt<RankId>({0, 1}));
          const auto receive = rank->postReceive(RankId(0), data);
          if (posted_first) rank->barrier(idsAt<RankId>({0, 1}));
          awaitBytes(data, pattern);
          receive->wait();
          require(receive->waited() == 0ns, "it waited {} ns for what was there", receive->waited().count());
          requirePattern(data, i + 1);
        }
        rank->barrier(idsAt<RankId>({0, 1}));
        rank.release();
      }
    }
  }));
}

TEST_P(PostedReceives, EmptyMessagesTakeTheirTurn) {
  expectSuccess(run(2, [](Rank& rank) {
    if (rank.rank() == 0) {
      const auto empty = rank->send(RankId(1), {});
      rank->send(RankId(1), rank.pattern(100, 1))->wait();
      return;
    }
    rank->postReceive(RankId(0), {})->wait();
    const std::span<std::byte> data{rank.allocate(100), 100};
    rank->receive(RankId(0), data);
    requirePattern(data, 1);
  }));
}

// Sends, receives and collectives of the rank meanwhile are of other messages.
TEST_P(PostedReceives, OtherOperationsGoOnBesideThem) {
  constexpr int kRanks = 4;
  expectSuccess(run(kRanks, [](Rank& rank) {
    for (size_t round = 0; round < 10; ++round) {
      const size_t bytes = 1000 + round * 70000;
      std::vector<std::unique_ptr<SendHandle>> sends;
      std::vector<std::unique_ptr<ReceiveHandle>> receives(kRanks);
      std::vector<std::span<std::byte>> data(kRanks);
      const size_t self = rank.rank();
      for (size_t peer = 0; peer < kRanks; ++peer) {
        if (peer == self) continue;
        data[peer] = {rank.allocate(bytes), bytes};
        if (peer % 2 == 0) receives[peer] = rank->postReceive(RankId(peer), data[peer]);
      }
      for (size_t peer = 0; peer < kRanks; ++peer) {
        if (peer != self)
          sends.push_back(rank->send(RankId(peer), rank.pattern(bytes, round * 100 + self * 10 + peer)));
      }
      const auto sums = rank.allocate<int64_t>(20000);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = i + self;
      rank->allReduce(rank.everybody(), DataType::kInt64, Reduction::kSum, sums.data(), sums.data(),
                      sums.size());
      for (size_t i = 0; i < sums.size(); ++i)
        require(sums[i] == static_cast<int64_t>(4 * i + 6), "element {} is {}", i, sums[i]);
      for (size_t peer = kRanks; peer-- > 0;) {
        if (peer == self) continue;
        receives[peer] ? receives[peer]->wait() : rank->receive(RankId(peer), data[peer]);
        requirePattern(data[peer], round * 100 + peer * 10 + self);
      }
      for (const auto& send : sends) send->wait();
      rank->barrier(rank.everybody());
      rank.release();
    }
  }));
}

// Every way in which a message and its receive can come together.
TEST_P(PostedReceives, RandomMomentsChangeNothing) {
  expectSuccess(run(2, [](Rank& rank) {
    std::mt19937 shared(7), own(static_cast<unsigned>(rank.rank()) + 100);
    const int peer = 1 - rank.rank();
    const auto pause = [&] {
      if (own() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
    };
    for (size_t message = 0; message < 300; ++message) {
      const size_t bytes =
          shared() % 20 == 0 ? shared() % 3000000 : shared() % (shared() % 2 == 0 ? 400 : 150000);
      const std::span<std::byte> data{rank.allocate(bytes), bytes};
      const auto pattern = rank.pattern(bytes, message + static_cast<size_t>(rank.rank()));
      const bool posts = own() % 3 != 0;
      const auto receive = posts ? rank->postReceive(RankId(peer), data) : nullptr;
      pause();
      const auto send = rank->send(RankId(peer), pattern);
      pause();
      receive ? receive->wait() : rank->receive(RankId(peer), data);
      requirePattern(data, message + static_cast<size_t>(peer));
      send->wait();
      rank.release();
    }
  }));
}

TEST_P(PostedReceives, ADeadRankEndsTheWait) {
  const auto job = GetParam().make(2);
  Arrivals opened(2);
  const auto results = runRanks(
      2,
      [&](int number) {
        Rank rank(*job, GetParam(), RankId(number), 20s);
        opened.here(number);
        if (number == 1) std::this_thread::sleep_for(30s);
        std::array<std::byte, 1234> data;
        rank->postReceive(RankId(1), data)->wait();
      },
      25s,
      [&](const std::vector<pid_t>& ranks) {
        opened.waitForAll();
        std::this_thread::sleep_for(200ms);
        ::kill(ranks[1], SIGKILL);
        job->markDead(RankId(1));
      });
  expectError(results[0], ErrorCode::kPeerUnavailable, {"rank 0", "rank 1", "1234 bytes", "died"});
}

TEST_P(PostedReceives, AStuckRankIsAHangAfterTheTimeout) {
  Arrivals gave_up(1);
  const auto results = run(
      2,
      [&](Rank& rank) {
        if (rank.rank() == 1) return gave_up.waitForAll();
        const HereAtEnd here(gave_up, 0);
        std::array<std::byte, 4321> data;
        const auto receive = rank->postReceive(RankId(1), data);
        std::this_thread::sleep_for(300ms);  // does not count
        receive->wait();
      },
      250ms);
  expectError(results[0], ErrorCode::kHang, {"rank 0", "rank 1", "4321 bytes", "250 ms"});
}

TEST_P(PostedReceives, DifferentSizesAreBothNamed) {
  const auto results = run(2, [](Rank& rank) {
    if (rank.rank() == 0) return rank->send(RankId(1), rank.pattern(100000, 0))->wait();
    std::array<std::byte, 999> data;
    const auto receive = rank->postReceive(RankId(0), data);
    std::this_thread::sleep_for(50ms);
    receive->wait();
  });
  expectError(results[1], ErrorCode::kVersionMismatch, {"100000 bytes", "999 bytes", "rank 0", "rank 1"});
}

// Messages of all sizes on their way to one rank that has posted them all; it waits for one now and then.
TEST_P(PostedReceives, ManyFromOnePeerComeInOrder) {
  constexpr size_t kMessages = 60;
  const auto sizeOf = [](size_t i) { return i % 7 == 0 ? i * 40000 : i % 3 == 0 ? size_t{20000} : i * 13; };
  expectSuccess(run(2, [&](Rank& rank) {
    std::vector<std::unique_ptr<SendHandle>> sends;
    std::vector<std::unique_ptr<ReceiveHandle>> receives;
    std::vector<std::span<std::byte>> data;
    for (size_t i = 0; i < kMessages; ++i) {
      if (rank.rank() == 0) {
        sends.push_back(rank->send(RankId(1), rank.pattern(sizeOf(i), i)));
        continue;
      }
      data.emplace_back(rank.allocate(sizeOf(i)), sizeOf(i));
      receives.push_back(rank->postReceive(RankId(0), data.back()));
      if (i == 20) receives[0]->wait();
    }
    for (const auto& send : sends) send->wait();
    for (size_t i = 0; i < receives.size(); ++i) {
      if (i > 0) receives[i]->wait();
      requirePattern(data[i], i);
    }
    rank->barrier(idsAt<RankId>({0, 1}));
  }));
}

TEST_P(PostedReceives, AreWaitedForBeforeOtherReceives) {
  for (const bool posts : {false, true}) {
    const auto results = run(2, [&](Rank& rank) {
      std::array<std::byte, 10> data, more;
      if (rank.rank() == 0) {
        const auto first = rank->send(RankId(1), data), second = rank->send(RankId(1), data);
        std::this_thread::sleep_for(200ms);
        return;
      }
      const auto first = rank->postReceive(RankId(0), data);
      if (!posts) return rank->receive(RankId(0), more);
      const auto second = rank->postReceive(RankId(0), more);
      second->wait();
    });
    expectError(results[1], ErrorCode::kInternal, {"rank 1", "from rank 0 before it has waited for"});
  }
}

TEST_P(PostedReceives, WhoGivesOneUpHasBrokenTheCommunicator) {
  const auto results = run(2, [](Rank& rank) {
    const size_t bytes = 1 << 20;
    if (rank.rank() == 0) {
      const auto send = rank->send(RankId(1), rank.pattern(bytes, 1));
      std::this_thread::sleep_for(200ms);
      return;
    }
    {
      const std::span<std::byte> data{rank.allocate(bytes), bytes};
      rank->postReceive(RankId(0), data);
    }
    std::array<std::byte, 10> more;
    rank->receive(RankId(0), more);
  });
  expectError(results[1], ErrorCode::kInternal,
              {"broken by an earlier error", "gave up a posted receive from rank 0"});
}

TEST_P(PostedReceives, InterruptEndsTheWait) {
  Arrivals gave_up(1);
  const auto results = run(2, [&](Rank& rank) {
    if (rank.rank() == 0) return gave_up.waitForAll();
    const HereAtEnd here(gave_up, 0);
    std::array<std::byte, 10> data;
    const auto receive = rank->postReceive(RankId(0), data);
    const std::jthread other([&] {
      std::this_thread::sleep_for(100ms);
      rank->interrupt();
    });
    receive->wait();
  });
  expectError(results[1], ErrorCode::kPeerUnavailable, {"has failed elsewhere and gives up"});
}

INSTANTIATE_TEST_SUITE_P(Transports, PostedReceives, ::testing::ValuesIn(allTransports()), transportName);

}  // namespace
}  // namespace pipeshard::testing
