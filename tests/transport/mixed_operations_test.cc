// Random programs of sends, receives and collectives. All ranks draw the same list and do their part of it in
// its order: sends post, everything else blocks. Such a program has an order in which all of it can happen,
// so it may never hang.
#include <algorithm>
#include <random>

#include "tests/transport/transports.h"

namespace pipeshard::testing {
namespace {

using MixedOperations = TransportTest;

constexpr int kRanks = 4;

size_t drawBytes(std::mt19937& random) {
  const size_t limit = std::vector<size_t>{1, 100, 9000, 70000, 1000000}[random() % 5];
  return random() % (limit + 1);
}

Group drawGroup(std::mt19937& random) {
  Group group;
  while (group.empty()) {
    for (RankId rank : idsBelow<RankId>(kRanks)) {
      if (random() % 2 == 0) group.push_back(rank);
    }
  }
  return group;
}

void doMessage(Rank& rank, std::mt19937& random, std::vector<std::unique_ptr<SendHandle>>& handles,
               std::span<std::byte> memory, size_t number) {
  const int from = random() % kRanks;
  const int to = (from + 1 + static_cast<int>(random() % (kRanks - 1))) % kRanks;
  const size_t bytes = drawBytes(random);
  if (rank.rank() == from) handles.push_back(rank->send(RankId(to), rank.pattern(bytes, number)));
  if (rank.rank() == to) {
    rank->receive(RankId(from), memory.first(bytes));
    requirePattern(memory.first(bytes), number);
  }
}

void doAllReduce(Rank& rank, std::mt19937& random, size_t number) {
  const Group group = drawGroup(random);
  const size_t count = drawBytes(random) / 8;
  if (std::find(group.begin(), group.end(), rank->rank()) == group.end()) return;
  const auto data = rank.allocate<int64_t>(count);
  int64_t ranks = 0;
  for (const RankId member : group) ranks += member.index();
  for (size_t i = 0; i < count; ++i) data[i] = static_cast<int64_t>(i * number) + rank.rank();
  rank->allReduce(group, DataType::kInt64, Reduction::kSum, data.data(), data.data(), count);
  for (size_t i = 0; i < count; ++i) {
    require(data[i] == static_cast<int64_t>(i * number * group.size()) + ranks,
            "step {}: allReduce element {}", number, i);
  }
}

void doBroadcast(Rank& rank, std::mt19937& random, size_t number) {
  const Group group = drawGroup(random);
  const size_t root = random() % group.size();
  const size_t bytes = drawBytes(random);
  if (std::find(group.begin(), group.end(), rank->rank()) == group.end()) return;
  const std::span<std::byte> data =
      group[root] == rank->rank() ? rank.pattern(bytes, number) : std::span{rank.allocate(bytes), bytes};
  rank->broadcast(group, DataType::kUint8, root, data.data(), bytes);
  requirePattern(data, number);
}

TEST_P(MixedOperations, RandomProgramsEndWithTheRightBytes) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    expectSuccess(run(kRanks, [&](Rank& rank) {
      std::mt19937 random(seed);
      std::vector<std::unique_ptr<SendHandle>> handles;
      const std::span<std::byte> memory{rank.allocate(1000000), 1000000};
      for (size_t number = 0; number < 250; ++number) {
        const auto kind = random() % 10;
        if (kind < 7) doMessage(rank, random, handles, memory, number);
        if (kind == 7 || kind == 8) doAllReduce(rank, random, number);
        if (kind == 9) doBroadcast(rank, random, number);
      }
      for (const auto& handle : handles) handle->wait();
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, MixedOperations, ::testing::ValuesIn(allTransports()), transportName);

}  // namespace
}  // namespace pipeshard::testing
