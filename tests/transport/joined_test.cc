// What is particular to shared memory joined with Gloo: ranks 0 and 2 are on one node, 1 and 3 on another
// (JoinedJob).
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "tests/expect_error.h"
#include "tests/transport/shared_store.h"
#include "tests/transport/transports.h"
#include "transport/collectives/joined_communicator.h"

namespace pipeshard::testing {
namespace {

using namespace std::chrono_literals;

const Transport& joined() {
  static const std::vector<Transport> all = allTransports();
  const auto found = std::find_if(all.begin(), all.end(),
                                  [](const Transport& transport) { return transport.name == "Joined"; });
  if (found == all.end()) throw std::runtime_error("no transport is called Joined");
  return *found;
}

std::vector<RankResult> run(int size, const std::function<void(Rank&)>& body,
                            std::chrono::milliseconds timeout) {
  const auto job = joined().make(size);
  return runRanks(size, [&](int number) {
    Rank rank(*job, joined(), RankId(number), timeout);
    body(rank);
  });
}

TEST(Joined, MessagesOfBothSpeakOfTheSameRanks) {
  Arrivals gave_up(2);
  const auto results = run(
      4,
      [&](Rank& rank) {
        if (rank.rank() >= 2) return gave_up.waitForAll();
        const HereAtEnd here(gave_up, rank.rank());
        std::array<std::byte, 99> data;
        rank->receive(RankId(2), data);
      },
      300ms);
  expectError(results[0], ErrorCode::kHang, {"rank 0: send of 99 bytes waits for rank 2", "rank 2 is alive"});
  expectError(results[1], ErrorCode::kHang,
              {"rank 1: send of 99 bytes waits for rank 2", "rank 2 is connected"});
}

// Who has died is learnt from the launcher on a node, and from the connection between nodes: that tells which
// one was used.
TEST(Joined, GroupsOnOneNodeUseSharedMemory) {
  const auto job = joined().make(4);
  Arrivals passed(3);
  const auto results = runRanks(
      4,
      [&](int number) {
        Rank rank(*job, joined(), RankId(number), 20s);
        rank->barrier(idsAt<RankId>({0, 1, 2, 3}));
        if (number == 3) {
          passed.waitForAll();  // what it sent for the barrier has arrived
          ::kill(::getpid(), SIGKILL);
        }
        passed.here(number);
        if (number == 1) rank->barrier(idsAt<RankId>({1, 3}));
        if (number != 1) rank->barrier(idsAt<RankId>({0, 2, 3}));
      },
      25s,
      [&](const std::vector<pid_t>&) {
        passed.waitForAll();
        std::this_thread::sleep_for(300ms);
        job->markDead(RankId(3));
      });
  expectError(results[1], ErrorCode::kPeerUnavailable, {"rank 1: barrier", "rank 3 has died;"});
  expectError(results[0], ErrorCode::kPeerUnavailable,
              {"rank 0: barrier", "rank 3 has died or its connection broke"});
}

// Rank 0's message lies outside its arena, so it moves only while rank 0 calls; but rank 0 waits for rank 1,
// over Gloo.
TEST(Joined, AWaitBetweenNodesMovesSendsOnTheNode) {
  constexpr size_t kBytes = 4 << 20;
  expectSuccess(run(
      3,
      [](Rank& rank) {
        for (const size_t reply : {size_t{8}, kBytes}) {
          const std::span<std::byte> data{rank.allocate(kBytes), kBytes};
          if (rank.rank() == 0) {
            const auto handle = rank->send(RankId(2), rank.pattern(kBytes, 1));
            rank->receive(RankId(1), data.first(reply));
            handle->wait();
          } else if (rank.rank() == 2) {
            std::this_thread::sleep_for(50ms);
            rank->receive(RankId(0), data);
            requirePattern(data, 1);
            rank->send(RankId(1), data.first(reply))->wait();
          } else {
            rank->receive(RankId(2), data.first(reply));
            rank->send(RankId(0), data.first(reply))->wait();
          }
        }
      },
      3s));
}

// A communicator that does nothing, of any rank and size.
class Nothing : public Communicator {
 public:
  Nothing(RankId rank, int size) : rank_(rank), size_(size) {}
  RankId rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<SendHandle> send(RankId, std::span<const std::byte>) override { return nullptr; }
  void receive(RankId, std::span<std::byte>) override {}
  void allReduce(const Group&, DataType, Reduction, const void*, void*, size_t) override {}
  void allGather(const Group&, DataType, const void*, void*, size_t) override {}
  void reduceScatter(const Group&, DataType, Reduction, const void*, void*, size_t) override {}
  void allToAll(const Group&, DataType, const void*, void*, size_t) override {}
  void broadcast(const Group&, DataType, int, void*, size_t) override {}
  void barrier(const Group&) override {}

 private:
  RankId rank_;
  int size_;
};

TEST(Joined, CommunicatorsThatDoNotFitAreRefused) {
  const IdVector<RankId, int> nodes = {0, 1, 0, 1};
  const auto make = [](int rank, int size) { return std::make_unique<Nothing>(RankId(rank), size); };
  EXPECT_EQ(joinCommunicators(nodes, RankId(3), make(1, 2), make(3, 4))->rank(), RankId(3));
  EXPECT_ERROR(joinCommunicators(nodes, RankId(3), make(0, 2), make(3, 4)), ErrorCode::kInternal,
               "rank 0 of 2, expected 1 of 2");
  EXPECT_ERROR(joinCommunicators(nodes, RankId(3), make(1, 3), make(3, 4)), ErrorCode::kInternal,
               "rank 1 of 3");
  EXPECT_ERROR(joinCommunicators(nodes, RankId(3), nullptr, make(3, 4)), ErrorCode::kInternal,
               "shares its node");
  EXPECT_ERROR(joinCommunicators(nodes, RankId(3), make(1, 2), make(2, 4)), ErrorCode::kInternal,
               "all 4 ranks");
  EXPECT_ERROR(joinCommunicators(nodes, RankId(4), nullptr, make(2, 4)), ErrorCode::kInternal, "rank 4");
  EXPECT_EQ(ranksOnNode(nodes, RankId(1)), idsAt<RankId>({1, 3}));
}

}  // namespace
}  // namespace pipeshard::testing
