#include "tests/transport/rank_threads.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <numeric>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "transport/shared/shared_memory.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard::testing {
namespace {

// Each rank closes its own descriptors.
SharedSegments duplicate(const SharedSegments& segments) {
  std::string text = fmt::format("control={},arenas=", ::dup(segments.controlDescriptor()));
  for (int rank = 0; rank < segments.size(); ++rank)
    text += fmt::format("{}{}", rank == 0 ? "" : ":", ::dup(segments.arenaDescriptor(rank)));
  return SharedSegments::inherit(text);
}

}  // namespace

void runRankThreads(int size, const std::function<void(Communicator&)>& body) {
  SharedSegments segments = SharedSegments::create(size);
  std::vector<std::string> errors(size);
  const auto run_rank = [&](int rank) {
    try {
      const auto communicator =
          SharedMemoryCommunicator::open(duplicate(segments), rank, std::chrono::seconds(60));
      body(*communicator);
      Group everybody(size);
      std::iota(everybody.begin(), everybody.end(), 0);
      communicator->barrier(everybody);
    } catch (const std::exception& error) {
      errors[rank] = error.what();
      segments.markDead(rank);
    }
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back(run_rank, rank);
  for (std::thread& rank : ranks) rank.join();
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(errors[rank], "") << "rank " << rank;
}

}  // namespace pipeshard::testing
