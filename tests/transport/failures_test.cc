// What happens when a rank dies, stops, ends, or does something else than the others.
#include <signal.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <thread>

#include "tests/transport/shared_store.h"
#include "tests/transport/transports.h"

namespace pipeshard::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class Failures : public TransportTest {
 protected:
  // Rank 1 of two does nothing until it is killed; rank 0 runs `body` and must end with kPeerUnavailable.
  void expectDeathEnds(const std::function<void(Rank&)>& body, const std::vector<std::string>& parts) {
    const auto job = GetParam().make(2);
    Arrivals opened(2);
    Clock::time_point killed;
    const auto results = runRanks(
        2,
        [&](int number) {
          Rank rank(*job, GetParam(), RankId(number), 20s);
          opened.here(number);
          if (number == 1) std::this_thread::sleep_for(30s);
          body(rank);
        },
        25s,
        [&](const std::vector<pid_t>& ranks) {
          opened.waitForAll();
          std::this_thread::sleep_for(200ms);  // by then rank 0 waits
          ::kill(ranks[1], SIGKILL);
          job->markDead(RankId(1));
          killed = Clock::now();
        });
    EXPECT_LT(Clock::now() - killed, 10s);  // of 20
    EXPECT_EQ(results[1].signal, SIGKILL);
    expectError(results[0], ErrorCode::kPeerUnavailable, parts);
  }
};

TEST_P(Failures, ADeadRankEndsAReceive) {
  expectDeathEnds(
      [](Rank& rank) {
        std::array<std::byte, 1234> data;
        rank->receive(RankId(1), data);
      },
      {"rank 0", "rank 1", "1234 bytes", "died"});
}

TEST_P(Failures, ADeadRankEndsAWaitForASend) {
  expectDeathEnds([](Rank& rank) { rank->send(RankId(1), rank.pattern(2 << 20, 0))->wait(); },
                  {"rank 0", "rank 1", "2097152 bytes", "died"});
}

TEST_P(Failures, ADeadRankEndsACollective) {
  expectDeathEnds(
      [](Rank& rank) {
        const auto data = rank.allocate<float>(100000);
        rank->allReduce(rank.everybody(), DataType::kFloat32, Reduction::kSum, data.data(), data.data(),
                        data.size());
      },
      {"allReduce", "rank 1", "died"});
}

TEST_P(Failures, ADeadMemberEndsTheCollectiveOfThoseWhoWaitForOthers) {
  const auto job = GetParam().make(3);
  Arrivals opened(3);
  const auto results = runRanks(
      3,
      [&](int number) {
        Rank rank(*job, GetParam(), RankId(number), 20s);
        opened.here(number);
        if (number == 2) std::this_thread::sleep_for(30s);
        rank->barrier(idsAt<RankId>({0, 1, 2}));
      },
      25s,
      [&](const std::vector<pid_t>& ranks) {
        opened.waitForAll();
        std::this_thread::sleep_for(300ms);  // by then they wait
        ::kill(ranks[2], SIGKILL);
        job->markDead(RankId(2));
      });
  expectError(results[0], ErrorCode::kPeerUnavailable, {"barrier"});
  expectError(results[1], ErrorCode::kPeerUnavailable, {"barrier"});
}

TEST_P(Failures, WhatADeadRankHadSentStillArrives) {
  const auto job = GetParam().make(2);
  Arrivals sent(2);
  const auto results = runRanks(
      2,
      [&](int number) {
        Rank rank(*job, GetParam(), RankId(number), 20s);
        if (number == 1) {
          const auto handle = rank->send(RankId(0), rank.pattern(5000, 3));
          sent.here(1);
          ::kill(::getpid(), SIGKILL);
        }
        sent.here(0);
        std::this_thread::sleep_for(300ms);
        const std::span<std::byte> data{rank.allocate(5000), 5000};
        rank->receive(RankId(1), data);
        requirePattern(data, 3);
      },
      25s,
      [&](const std::vector<pid_t>&) {
        sent.waitForAll();
        std::this_thread::sleep_for(200ms);
        job->markDead(RankId(1));
      });
  EXPECT_EQ(results[0].exit_code, 0) << results[0].error;
}

TEST_P(Failures, AStuckRankIsAHangAfterTheTimeout) {
  const auto start = Clock::now();
  Arrivals gave_up(1);
  const auto results = run(
      2,
      [&](Rank& rank) {
        if (rank.rank() == 1) return gave_up.waitForAll();
        const HereAtEnd here(gave_up, 0);
        std::array<std::byte, 4321> data;
        rank->receive(RankId(1), data);
      },
      400ms);
  EXPECT_GE(Clock::now() - start, 400ms);
  expectError(results[0], ErrorCode::kHang, {"rank 0", "rank 1", "4321 bytes", "400 ms"});
}

TEST_P(Failures, AStoppedRankIsAHangAfterTheTimeout) {
  const auto job = GetParam().make(2);
  Arrivals opened(2), gave_up(1);
  const auto results = runRanks(
      2,
      [&](int number) {
        Rank rank(*job, GetParam(), RankId(number), 500ms);
        opened.here(number);
        std::optional<HereAtEnd> here;
        if (number == 0) here.emplace(gave_up, 0);
        const auto data = rank.allocate<float>(1000);
        while (true)
          rank->allReduce(idsAt<RankId>({0, 1}), DataType::kFloat32, Reduction::kSum, data.data(),
                          data.data(), data.size());
      },
      25s,
      [&](const std::vector<pid_t>& ranks) {
        opened.waitForAll();
        std::this_thread::sleep_for(300ms);
        ::kill(ranks[1], SIGSTOP);
        gave_up.waitForAll();
        ::kill(ranks[1], SIGKILL);
      });
  expectError(results[0], ErrorCode::kHang, {"allReduce", "rank 1"});
}

TEST_P(Failures, ARankThatNeverStartsIsNamed) {
  const auto job = GetParam().make(2);
  const auto results = runRanks(1, [&](int number) {
    Rank rank(*job, GetParam(), RankId(number), 200ms);
    rank->barrier(idsAt<RankId>({0, 1}));
  });
  if (GetParam().connects) {
    expectError(results[0], ErrorCode::kPeerUnavailable, {"rank 0 connects to rank 1", "did it start"});
  } else {
    expectError(results[0], ErrorCode::kHang, {"barrier", "rank 1", "did it start"});
  }
}

TEST_P(Failures, ARankThatEndsEarlyIsNotWaitedFor) {
  const auto start = Clock::now();
  const auto results = run(2, [](Rank& rank) {
    if (rank.rank() == 1) return;
    std::array<std::byte, 10> data;
    rank->receive(RankId(1), data);
  });
  EXPECT_LT(Clock::now() - start, 5s);
  expectError(results[0], ErrorCode::kPeerUnavailable, {"rank 1", "ended"});
}

TEST_P(Failures, DifferentSizesAreBothNamed) {
  const auto results = run(2, [](Rank& rank) {
    if (rank.rank() == 0) return rank->send(RankId(1), rank.pattern(1000, 0))->wait();
    std::array<std::byte, 999> data;
    rank->receive(RankId(0), data);
  });
  expectError(results[1], ErrorCode::kVersionMismatch, {"1000 bytes", "999 bytes", "rank 0", "rank 1"});
}

TEST_P(Failures, DifferentCollectivesAreBothNamed) {
  const auto results = run(2, [](Rank& rank) {
    const auto data = rank.allocate<float>(300);
    if (rank.rank() == 0)
      return rank->allReduce(idsAt<RankId>({0, 1}), DataType::kFloat32, Reduction::kSum, data.data(),
                             data.data(), 100);
    rank->allGather(idsAt<RankId>({0, 1}), DataType::kFloat32, data.data(), data.data() + 100, 100);
  });
  expectError(results[1], ErrorCode::kVersionMismatch, {"allReduce", "allGather", "rank 0", "rank 1"});
}

TEST_P(Failures, ABrokenCommunicatorRepeatsItsFirstError) {
  Arrivals gave_up(1);
  const auto results = run(
      2,
      [&](Rank& rank) {
        if (rank.rank() == 1) return gave_up.waitForAll();
        const HereAtEnd here(gave_up, 0);
        std::array<std::byte, 77> data;
        bool thrown = false;
        try {
          rank->receive(RankId(1), data);
        } catch (const Error&) {
          thrown = true;
        }
        require(thrown, "no error");
        rank->barrier(idsAt<RankId>({0, 1}));
      },
      200ms);
  expectError(results[0], ErrorCode::kHang, {"broken by an earlier error", "77 bytes"});
}

TEST_P(Failures, ArgumentsAreChecked) {
  const auto expectRefused = [&](const std::function<void(Rank&)>& body, ErrorCode code,
                                 const std::string& part) { expectError(run(1, body)[0], code, {part}); };
  std::array<float, 4> data{};
  expectRefused([&](Rank& rank) { rank->barrier(idsAt<RankId>({})); }, ErrorCode::kInternal, "group");
  expectRefused([&](Rank& rank) { rank->barrier(idsAt<RankId>({0, 0})); }, ErrorCode::kInternal, "group");
  expectRefused([&](Rank& rank) { rank->barrier(idsAt<RankId>({0, 1})); }, ErrorCode::kInternal, "group");
  expectRefused([&](Rank& rank) { rank->send(RankId(1), {}); }, ErrorCode::kInternal, "peer 1");
  expectRefused([&](Rank& rank) { rank->receive(RankId(), {}); }, ErrorCode::kInternal, "peer -");
  expectRefused(
      [&](Rank& rank) { rank->broadcast(idsAt<RankId>({0}), DataType::kFloat32, 1, data.data(), 1); },
      ErrorCode::kInternal, "member 1");
  expectRefused(
      [&](Rank& rank) {
        rank->allReduce(idsAt<RankId>({0}), DataType::kFloat8E5M2, Reduction::kSum, data.data(), data.data(),
                        1);
      },
      ErrorCode::kConfiguration, "float8_e5m2");
  expectRefused(
      [&](Rank& rank) {
        rank->allGather(idsAt<RankId>({0}), DataType::kString, data.data(), data.data(), 1);
      },
      ErrorCode::kInternal, "string");
}

INSTANTIATE_TEST_SUITE_P(Transports, Failures, ::testing::ValuesIn(allTransports()), transportName);

}  // namespace
}  // namespace pipeshard::testing
