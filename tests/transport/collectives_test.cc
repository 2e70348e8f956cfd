#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "tests/transport/transports.h"

namespace pipeshard::testing {
namespace {

using Collectives = TransportTest;

const std::vector<size_t> kCounts = {0, 1, 2, 3, 17, 1000, 2048, 2049, 16384, 70001, 300007};

// Small whole numbers: sums are exact in every type and order.
template <typename T>
T valueOf(int rank, size_t i) {
  return static_cast<T>(static_cast<int>((i * 7 + static_cast<size_t>(rank) * 13) % 101) - 50);
}

template <typename T>
std::span<T> makeInput(Rank& rank, size_t count, size_t shift = 0) {
  const std::span<T> data = rank.allocate<T>(count);
  for (size_t i = 0; i < count; ++i) data[i] = valueOf<T>(rank.rank(), i + shift);
  return data;
}

template <typename T>
T reduced(const Group& group, Reduction reduction, size_t i) {
  T result = valueOf<T>(group[0].index(), i);
  for (size_t k = 1; k < group.size(); ++k) {
    const T value = valueOf<T>(group[k].index(), i);
    if (reduction == Reduction::kSum) result += value;
    if (reduction == Reduction::kMax) result = std::max(result, value);
    if (reduction == Reduction::kMin) result = std::min(result, value);
  }
  return result;
}

template <typename T>
void checkAllReduce(Rank& rank, const Group& group, Reduction reduction, size_t count, bool in_place) {
  const std::span<T> input = makeInput<T>(rank, count);
  const std::span<T> output = in_place ? input : rank.allocate<T>(count);
  rank->allReduce(group, dataTypeOf<T>(), reduction, input.data(), output.data(), count);
  for (size_t i = 0; i < count; ++i) {
    require(output[i] == reduced<T>(group, reduction, i), "allReduce of {} {}: element {} is {}, expected {}",
            count, dataTypeName(dataTypeOf<T>()), i, output[i], reduced<T>(group, reduction, i));
    if (!in_place) require(input[i] == valueOf<T>(rank.rank(), i), "the input has changed");
  }
}

template <typename T>
void checkReduceScatter(Rank& rank, const Group& group, size_t self, size_t count) {
  const std::span<T> input = makeInput<T>(rank, count * group.size());
  const std::span<T> output = rank.allocate<T>(count);
  rank->reduceScatter(group, dataTypeOf<T>(), Reduction::kSum, input.data(), output.data(), count);
  for (size_t i = 0; i < count; ++i) {
    const T expected = reduced<T>(group, Reduction::kSum, self * count + i);
    require(output[i] == expected, "reduceScatter of {}: element {} is {}, expected {}", count, i, output[i],
            expected);
  }
}

void checkMoves(Rank& rank, const Group& group, size_t self, size_t count) {
  const size_t size = group.size();
  const auto input = makeInput<float>(rank, count);
  const auto gathered = rank.allocate<float>(count * size);
  rank->allGather(group, DataType::kFloat32, input.data(), gathered.data(), count);
  const auto blocks = makeInput<float>(rank, count * size);
  const auto exchanged = rank.allocate<float>(count * size);
  rank->allToAll(group, DataType::kFloat32, blocks.data(), exchanged.data(), count);
  for (size_t member = 0; member < size; ++member) {
    for (size_t i = 0; i < count; ++i) {
      require(gathered[member * count + i] == valueOf<float>(group[member].index(), i),
              "allGather of {}: element {} of member {}", count, i, member);
      require(exchanged[member * count + i] == valueOf<float>(group[member].index(), self * count + i),
              "allToAll of {}: element {} of member {}", count, i, member);
    }
  }
  for (size_t root = 0; root < size; ++root) {
    const auto data = makeInput<float>(rank, count, root);
    rank->broadcast(group, DataType::kFloat32, root, data.data(), count);
    for (size_t i = 0; i < count; ++i)
      require(data[i] == valueOf<float>(group[root].index(), i + root), "broadcast of {} from {}: element {}",
              count, root, i);
  }
  rank->barrier(group);
}

void checkAll(Rank& rank, const Group& group, size_t count) {
  const size_t self = std::find(group.begin(), group.end(), rank->rank()) - group.begin();
  for (const bool in_place : {false, true}) {
    checkAllReduce<float>(rank, group, Reduction::kSum, count, in_place);
    checkAllReduce<double>(rank, group, Reduction::kMax, count, in_place);
    checkAllReduce<int32_t>(rank, group, Reduction::kMin, count, in_place);
    checkAllReduce<int64_t>(rank, group, Reduction::kSum, count, in_place);
  }
  checkReduceScatter<float>(rank, group, self, count);
  checkReduceScatter<int64_t>(rank, group, self, count);
  checkMoves(rank, group, self, count);
}

TEST_P(Collectives, AgreeWithClosedFormsOnOneToFourRanks) {
  for (int size = 1; size <= 4; ++size) {
    SCOPED_TRACE(fmt::format("{} ranks", size));
    expectSuccess(run(size, [&](Rank& rank) {
      for (const size_t count : kCounts) {
        checkAll(rank, rank.everybody(), count);
        rank.release();
      }
    }));
  }
}

TEST_P(Collectives, OverlappingGroupsAlternate) {
  const std::vector<Group> groups = {
      idsAt<RankId>({0, 2}), idsAt<RankId>({1, 3}), idsAt<RankId>({0, 1, 2, 3}), idsAt<RankId>({1, 2, 3}),
      idsAt<RankId>({0, 3}), idsAt<RankId>({2}),    idsAt<RankId>({0, 1})};
  expectSuccess(run(4, [&](Rank& rank) {
    for (const size_t count : {3, 5000, 40000}) {
      for (const Group& group : groups) {
        if (std::find(group.begin(), group.end(), rank->rank()) != group.end())
          checkAll(rank, group, static_cast<size_t>(count));
      }
    }
  }));
}

// Values whose sum depends on the order: the result must be that of the order of the ranks, bit by bit.
TEST_P(Collectives, SumsAreTakenInRankOrder) {
  const auto irregular = [](int rank, size_t i) {
    return std::sin(static_cast<float>(i + 1) * 12.9898F + static_cast<float>(rank) * 78.233F) *
           std::exp2(static_cast<float>((i + static_cast<size_t>(rank) * 5) % 40));
  };
  for (const size_t count : {100, 70001}) {
    expectSuccess(run(4, [&](Rank& rank) {
      std::vector<float> expected(count);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] = irregular(0, i);
        for (int other = 1; other < rank.size(); ++other) expected[i] += irregular(other, i);
      }
      for (int round = 0; round < 3; ++round) {
        const auto data = rank.allocate<float>(expected.size());
        for (size_t i = 0; i < data.size(); ++i) data[i] = irregular(rank.rank(), i);
        rank->allReduce(rank.everybody(), DataType::kFloat32, Reduction::kSum, data.data(), data.data(),
                        data.size());
        require(std::memcmp(data.data(), expected.data(), data.size_bytes()) == 0,
                "other bits than in rank order");
      }
    }));
  }
}

TEST_P(Collectives, ManySmallOnesFollowEachOther) {
  expectSuccess(run(3, [](Rank& rank) {
    const auto data = rank.allocate<int64_t>(10);
    for (int64_t round = 0; round < 2000; ++round) {
      for (int64_t& value : data) value = round + rank.rank();
      rank->allReduce(rank.everybody(), DataType::kInt64, Reduction::kSum, data.data(), data.data(),
                      data.size());
      for (const int64_t value : data) require(value == 3 * round + 3, "round {}: {}", round, value);
    }
  }));
}

// The first to arrive may not overwrite what the last has not read yet.
TEST_P(Collectives, InputsMayBeOverwrittenAfterReturn) {
  expectSuccess(run(4, [](Rank& rank) {
    const size_t count = 50000;
    const auto input = rank.allocate<float>(count);
    const auto output = rank.allocate<float>(count * 4);
    for (int round = 0; round < 20; ++round) {
      for (float& value : input) value = static_cast<float>(round * 4 + rank.rank());
      if (round % 4 == rank.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      rank->allGather(rank.everybody(), DataType::kFloat32, input.data(), output.data(), count);
      for (float& value : input) value = -1;
      for (size_t i = 0; i < output.size(); ++i) {
        const size_t from = i / count;
        require(output[i] == static_cast<float>(round * 4) + static_cast<float>(from),
                "round {}: element {} is {}", round, i, output[i]);
      }
    }
  }));
}

TEST_P(Collectives, ABarrierIsLeftOnlyWhenAllHaveEntered) {
  const auto job = GetParam().make(4);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  expectSuccess(runRanks(4, [&](int number) {
    Rank rank(*job, GetParam(), RankId(number));
    for (int round = 0; round < 50; ++round) {
      const char mark = 'x';
      if (rank.rank() == round % 4) std::this_thread::sleep_for(std::chrono::microseconds(500));
      require(::write(ends[1], &mark, 1) == 1, "write");
      rank->barrier(rank.everybody());
      if (rank.rank() == 0) {
        int waiting = 0;
        require(::ioctl(ends[0], FIONREAD, &waiting) == 0 && waiting == 4 * (round + 1), "round {}: {} marks",
                round, waiting);
      }
      rank->barrier(rank.everybody());
    }
  }));
  ::close(ends[0]);
  ::close(ends[1]);
}

INSTANTIATE_TEST_SUITE_P(Transports, Collectives, ::testing::ValuesIn(allTransports()), transportName);

}  // namespace
}  // namespace pipeshard::testing
