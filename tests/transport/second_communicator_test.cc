// A rank's second communicator, used by another thread beside the first.
#include <signal.h>

#include <future>
#include <thread>

#include "tests/expect_error.h"
#include "tests/transport/shared_store.h"
#include "tests/transport/transports.h"

namespace pipeshard::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using SecondCommunicator = TransportTest;

// Rounds of sums over everybody, every element checked.
void sumRounds(Communicator& communicator, const Group& group, std::span<int64_t> data, int64_t rounds,
               int64_t factor) {
  int64_t ranks = 0;
  for (const RankId member : group) ranks += member.index();
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < data.size(); ++i)
      data[i] = static_cast<int64_t>(i) * round * factor + static_cast<int64_t>(communicator.rank().index());
    communicator.allReduce(group, DataType::kInt64, Reduction::kSum, data.data(), data.data(), data.size());
    for (size_t i = 0; i < data.size(); ++i) {
      const int64_t expected = static_cast<int64_t>(i * group.size()) * round * factor + ranks;
      require(data[i] == expected, "factor {}, round {}, element {}: {}, expected {}", factor, round, i,
              data[i], expected);
    }
  }
}

// Messages in a ring.
void passRounds(Rank& rank, std::span<std::byte> memory, size_t rounds) {
  const int next = (rank.rank() + 1) % rank.size();
  const int previous = (rank.rank() + rank.size() - 1) % rank.size();
  for (size_t round = 0; round < rounds; ++round) {
    const size_t bytes = 1 + round * 7919 % memory.size();
    const auto handle =
        rank->send(RankId(next), rank.pattern(bytes, round * 10 + static_cast<size_t>(rank.rank())));
    rank->receive(RankId(previous), memory.first(bytes));
    requirePattern(memory.first(bytes), round * 10 + static_cast<size_t>(previous));
    handle->wait();
  }
}

TEST_P(SecondCommunicator, BothWorkAtTheSameTimeWithoutMixing) {
  expectSuccess(run(3, [](Rank& rank) {
    const auto second = rank.openSecond();
    const auto first_data = rank.allocate<int64_t>(3001);
    const auto second_data = rank.allocate<int64_t>(100003);
    const std::span<std::byte> memory{rank.allocate(400000), 400000};
    const Group everybody = rank.everybody();
    std::thread other([&] { sumRounds(*second, everybody, second_data, 30, 3); });
    sumRounds(rank.communicator(), everybody, first_data, 60, 5);
    passRounds(rank, memory, 60);
    other.join();
  }));
}

// Rank 1's first communicator is not used before its second one's work is done, which rank 0 has begun:
// neither waits for the other.
TEST_P(SecondCommunicator, NeitherWaitsForTheOther) {
  expectSuccess(run(
      2,
      [](Rank& rank) {
        const auto second = rank.openSecond(3s);
        const auto data = rank.allocate<int64_t>(50000);
        const std::span<std::byte> memory{rank.allocate(100000), 100000};
        if (rank.rank() == 0) {
          std::thread other([&] { sumRounds(*second, idsAt<RankId>({0, 1}), data, 4, 1); });
          rank->receive(RankId(1), memory);
          requirePattern(memory, 9);
          other.join();
        } else {
          sumRounds(*second, idsAt<RankId>({0, 1}), data, 4, 1);
          rank->send(RankId(0), rank.pattern(memory.size(), 9))->wait();
        }
      },
      3s));
}

TEST_P(SecondCommunicator, ADeadRankEndsItsWaits) {
  const auto job = GetParam().make(2);
  Arrivals connected(2);
  Clock::time_point killed;
  const auto results = runRanks(
      2,
      [&](int number) {
        Rank rank(*job, GetParam(), RankId(number), 20s);
        const auto second = rank.openSecond(20s);
        second->barrier(rank.everybody());
        connected.here(number);
        if (number == 1) std::this_thread::sleep_for(30s);
        const auto data = rank.allocate<int64_t>(50000);
        second->allReduce(idsAt<RankId>({0, 1}), DataType::kInt64, Reduction::kSum, data.data(), data.data(),
                          data.size());
      },
      25s,
      [&](const std::vector<pid_t>& ranks) {
        connected.waitForAll();
        std::this_thread::sleep_for(300ms);
        ::kill(ranks[1], SIGKILL);
        job->markDead(RankId(1));
        killed = Clock::now();
      });
  EXPECT_LT(Clock::now() - killed, 10s);  // of 20
  expectError(results[0], ErrorCode::kPeerUnavailable, {"allReduce", "rank 1", "died"});
}

TEST_P(SecondCommunicator, AnInterruptEndsAWaitOfEither) {
  for (const bool of_second : {false, true}) {
    expectSuccess(run(2, [&](Rank& rank) {
      const auto second = rank.openSecond();
      Communicator& used = of_second ? *second : rank.communicator();
      Communicator& other = of_second ? rank.communicator() : *second;
      const std::span<std::byte> data{rank.allocate(100000), 100000};
      if (rank.rank() == 0) {
        std::future<std::string> waiting = std::async(std::launch::async, [&]() -> std::string {
          try {
            used.receive(RankId(1), data);
          } catch (const Error& error) {
            return error.what();
          }
          return "no error";
        });
        std::this_thread::sleep_for(100ms);
        const auto start = Clock::now();
        used.interrupt();
        const std::string message = waiting.get();
        require(message.find("failed elsewhere") != std::string::npos, "{}", message);
        require(Clock::now() - start < 2s, "the interrupt took too long");
      }
      // The other one is as before.
      std::vector<int64_t> sums(10);
      sumRounds(other, idsAt<RankId>({0, 1}), sums, 3, 2);
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, SecondCommunicator, ::testing::ValuesIn(allTransports()), transportName);

}  // namespace
}  // namespace pipeshard::testing
