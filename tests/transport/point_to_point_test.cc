#include <algorithm>
#include <thread>

#include "tests/transport/transports.h"

namespace pipeshard::testing {
namespace {

using PointToPoint = TransportTest;

const std::vector<size_t> kSizes = {0,     1,     3,     64,        4095,          4096,   4097,
                                    65535, 65536, 65537, 8 * 65536, 8 * 65536 + 1, 8 << 20};

TEST_P(PointToPoint, MessagesOfAllSizesArriveWholeAndInOrder) {
  expectSuccess(run(2, [](Rank& rank) {
    for (size_t i = 0; i < kSizes.size(); ++i) {
      if (rank.rank() == 0) {
        rank->send(RankId(1), rank.pattern(kSizes[i], i))->wait();
      } else {
        const std::span<std::byte> data{rank.allocate(kSizes[i]), kSizes[i]};
        rank->receive(RankId(0), data);
        requirePattern(data, i);
      }
    }
  }));
}

TEST_P(PointToPoint, BothDirectionsAtOnceDoNotWaitForEachOther) {
  expectSuccess(run(2, [](Rank& rank) {
    const int peer = 1 - rank.rank();
    const size_t bytes = (8 << 20) + 5;
    for (int round = 0; round < 3; ++round) {
      const auto handle = rank->send(RankId(peer), rank.pattern(bytes, rank.rank() + round));
      const std::span<std::byte> data{rank.allocate(bytes), bytes};
      rank->receive(RankId(peer), data);
      requirePattern(data, peer + round);
      handle->wait();
    }
  }));
}

TEST_P(PointToPoint, ManySendsMayBeOutstanding) {
  constexpr size_t kMessages = 1500;  // more than any queue holds
  const auto sizeOf = [](size_t i) { return i % 50 == 0 ? size_t{70000} : i % 300; };
  expectSuccess(run(2, [&](Rank& rank) {
    const int peer = 1 - rank.rank();
    std::vector<std::unique_ptr<SendHandle>> handles;
    for (size_t i = 0; i < kMessages; ++i)
      handles.push_back(rank->send(RankId(peer), rank.pattern(sizeOf(i), i)));
    const std::span<std::byte> data{rank.allocate(70000), 70000};
    for (size_t i = 0; i < kMessages; ++i) {
      rank->receive(RankId(peer), data.first(sizeOf(i)));
      requirePattern(data.first(sizeOf(i)), i);
    }
    for (const auto& handle : handles) handle->wait();
  }));
}

TEST_P(PointToPoint, PairsAreIndependent) {
  constexpr int kRanks = 4;
  const auto sizeOf = [](size_t from, size_t to) { return 100000 * (from + 1) + 7 * to; };
  const auto seedOf = [](size_t from, size_t to) { return from * kRanks + to; };
  expectSuccess(run(kRanks, [&](Rank& rank) {
    std::vector<std::unique_ptr<SendHandle>> handles;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == rank.rank()) continue;
      handles.push_back(
          rank->send(RankId(peer), rank.pattern(sizeOf(rank.rank(), peer), seedOf(rank.rank(), peer))));
    }
    for (int peer = kRanks - 1; peer >= 0; --peer) {
      if (peer == rank.rank()) continue;
      const std::span<std::byte> data{rank.allocate(sizeOf(peer, rank.rank())), sizeOf(peer, rank.rank())};
      rank->receive(RankId(peer), data);
      requirePattern(data, seedOf(peer, rank.rank()));
    }
    std::reverse(handles.begin(), handles.end());
    for (const auto& handle : handles) handle->wait();
  }));
}

TEST_P(PointToPoint, ASendIsDoneWhenThePeerHasTheData) {
  expectSuccess(run(2, [](Rank& rank) {
    const size_t bytes = 1000;
    if (rank.rank() == 0) {
      const auto data = rank.pattern(bytes, 1);
      const auto handle = rank->send(RankId(1), data);
      require(!handle->done(), "done before the peer receives");
      rank->barrier(rank.everybody());
      require(!handle->done(), "done before the peer receives");
      rank->barrier(rank.everybody());
      handle->wait();
      require(handle->done(), "not done after wait");
    } else {
      rank->barrier(rank.everybody());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      rank->barrier(rank.everybody());
      const std::span<std::byte> data{rank.allocate(bytes), bytes};
      rank->receive(RankId(0), data);
      requirePattern(data, 1);
    }
  }));
}

TEST_P(PointToPoint, ABufferMayBeOverwrittenAfterWait) {
  expectSuccess(run(2, [](Rank& rank) {
    const size_t bytes = 200000;
    const std::span<std::byte> data{rank.allocate(bytes), bytes};
    for (int round = 0; round < 50; ++round) {
      const auto value = static_cast<std::byte>(round);
      if (rank.rank() == 0) {
        std::fill(data.begin(), data.end(), value);
        rank->send(RankId(1), data)->wait();
      } else {
        rank->receive(RankId(0), data);
        const bool same = std::all_of(data.begin(), data.end(), [&](std::byte b) { return b == value; });
        require(same, "round {}: bytes of another round", round);
      }
    }
  }));
}

// A sender that waits for somebody else moves its own big messages on meanwhile.
TEST_P(PointToPoint, AWaitForOneRankServesTheOthers) {
  expectSuccess(run(3, [](Rank& rank) {
    const size_t bytes = 4 << 20;
    const std::span<std::byte> data{rank.allocate(bytes), bytes};
    if (rank.rank() == 0) {
      const auto handle = rank->send(RankId(1), rank.pattern(bytes, 9));
      rank->receive(RankId(2), data.first(8));  // comes only after rank 1 has everything
      handle->wait();
    } else if (rank.rank() == 1) {
      rank->receive(RankId(0), data);
      requirePattern(data, 9);
      rank->send(RankId(2), data.first(8))->wait();
    } else {
      rank->receive(RankId(1), data.first(8));
      rank->send(RankId(0), data.first(8))->wait();
    }
  }));
}

TEST_P(PointToPoint, EightRanksOnFewCoresPassARing) {
  expectSuccess(run(8, [](Rank& rank) {
    const int next = (rank.rank() + 1) % rank.size();
    const int previous = (rank.rank() + rank.size() - 1) % rank.size();
    const std::span<std::byte> data{rank.allocate(30000), 30000};
    const auto start = rank.pattern(30000, 4);
    for (int round = 0; round < 100; ++round) {
      if (rank.rank() == 0) rank->send(RankId(next), round == 0 ? start : data)->wait();
      rank->receive(RankId(previous), data);
      if (rank.rank() != 0) rank->send(RankId(next), data)->wait();
    }
    requirePattern(data, 4);
  }));
}

INSTANTIATE_TEST_SUITE_P(Transports, PointToPoint, ::testing::ValuesIn(allTransports()), transportName);

}  // namespace
}  // namespace pipeshard::testing
