#include "tests/transport/rank_threads.h"

#include <unistd.h>

#include <chrono>
#include <exception>
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
  for (RankId rank : idsBelow<RankId>(segments.size()))
    text += fmt::format("{}{}", rank.index() == 0 ? "" : ":", ::dup(segments.arenaDescriptor(rank)));
  return SharedSegments::inherit(text);
}

}  // namespace

void runRankThreads(int size, const std::function<void(Communicator&)>& body) {
  SharedSegments segments = SharedSegments::create(size);
  IdVector<RankId, std::string> errors(size);
  const auto run_rank = [&](RankId rank) {
    try {
      const auto communicator =
          SharedMemoryCommunicator::open(duplicate(segments), rank, std::chrono::seconds(60));
      body(*communicator);
      communicator->barrier(idsBelow<RankId>(size));
    } catch (const std::exception& error) {
      errors[rank] = error.what();
      segments.markDead(rank);
    }
  };
  std::vector<std::thread> ranks;
  for (RankId rank : errors.ids()) ranks.emplace_back(run_rank, rank);
  for (std::thread& rank : ranks) rank.join();
  for (RankId rank : errors.ids()) EXPECT_EQ(errors[rank], "") << "rank " << rank.index();
}

}  // namespace pipeshard::testing
