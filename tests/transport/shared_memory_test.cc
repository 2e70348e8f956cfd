#include "transport/shared/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "tests/expect_error.h"
#include "tests/transport/ranks.h"
#include "transport/shared/memory_available.h"
#include "transport/shared/shared_layout.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard::testing {
namespace {

using namespace std::chrono_literals;

std::set<std::string> openDescriptors() {
  std::set<std::string> result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    const auto target = std::filesystem::read_symlink(entry.path(), gone);
    if (!gone && target.string().find("/proc/") != 0)
      result.insert(entry.path().filename().string() + " " + target.string());
  }
  return result;
}

bool hasSegmentsMapped() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("pipeshard-") != std::string::npos) return true;
  }
  return false;
}

TEST(SharedSegments, AreDescribedInTextAndInherited) {
  SharedSegments made = SharedSegments::create(3);
  EXPECT_EQ(made.describe(), fmt::format("control={},arenas={}:{}:{}", made.controlDescriptor(),
                                         made.arenaDescriptor(RankId(0)), made.arenaDescriptor(RankId(1)),
                                         made.arenaDescriptor(RankId(2))));
  const std::string text = made.describe();
  expectSuccess(runRanks(1, [&](int) {
    const SharedSegments inherited = SharedSegments::inherit(text);
    require(inherited.describe() == text && inherited.size() == 3, "{}", inherited.describe());
    require((::fcntl(inherited.controlDescriptor(), F_GETFD) & FD_CLOEXEC) != 0,
            "the worker's children would inherit the segments");
  }));
  EXPECT_EQ(::fcntl(made.controlDescriptor(), F_GETFD) & FD_CLOEXEC, 0)
      << "a worker started by exec would not get them";
}

TEST(SharedSegments, RefuseMalformedDescriptions) {
  const SharedSegments made = SharedSegments::create(1);
  for (const std::string text : {"", "control=", "control=x,arenas=1", "control=5", "control=5,arenas=",
                                 "control=5,arenas=6:", "control=5,arenas=6;7", "arenas=5,control=6",
                                 "control=-5,arenas=6", "control=99999999999999,arenas=6"}) {
    EXPECT_EQ(codeOf([&] { SharedSegments::inherit(text); }), ErrorCode::kConfiguration) << text;
  }
  const std::string closed = fmt::format("control={},arenas=987", made.controlDescriptor());
  EXPECT_EQ(codeOf([&] { SharedSegments::inherit(closed); }), ErrorCode::kConfiguration);
  const std::string swapped =
      fmt::format("control={},arenas={}", made.arenaDescriptor(RankId(0)), made.controlDescriptor());
  EXPECT_EQ(codeOf([&] { SharedSegments::inherit(swapped); }), ErrorCode::kConfiguration);
  const std::string too_many = fmt::format("control={},arenas={}:{}", made.controlDescriptor(),
                                           made.arenaDescriptor(RankId(0)), made.arenaDescriptor(RankId(0)));
  EXPECT_EQ(codeOf([&] { SharedSegments::inherit(too_many); }), ErrorCode::kConfiguration);
  EXPECT_EQ(codeOf([] { SharedSegments::create(0); }), ErrorCode::kConfiguration);
  EXPECT_EQ(codeOf([] { SharedSegments::create(100000); }), ErrorCode::kConfiguration);
}

TEST(SharedSegments, OfAnotherVersionAreRefused) {
  const SharedSegments made = SharedSegments::create(1);
  const uint32_t other = 99;
  ASSERT_EQ(::pwrite(made.controlDescriptor(), &other, sizeof(other), 8), 4);
  EXPECT_EQ(codeOf([&] { SharedSegments::inherit(made.describe()); }), ErrorCode::kVersionMismatch);
}

TEST(SharedSegments, CostMemoryOnlyWhereUsed) {
  const SharedSegments made = SharedSegments::create(16);
  struct stat status {};
  ASSERT_EQ(::fstat(made.controlDescriptor(), &status), 0);
  EXPECT_GT(status.st_size, 100 << 20);
  EXPECT_LT(status.st_blocks * 512, 1 << 20);
}

TEST(SharedMemory, LeavesNoDescriptorAndNoMapping) {
  const auto before = openDescriptors();
  {
    SharedSegments made = SharedSegments::create(2);
    expectSuccess(runRanks(2, [&](int number) {
      const auto without = openDescriptors();
      require(!hasSegmentsMapped(), "mapped before");
      {
        auto communicator = SharedMemoryCommunicator::open(std::move(made), RankId(number), 10s);
        const auto arena = communicator->createArena(1 << 20);
        const auto handle = communicator->send(RankId(1 - number), arena.first(1000));
        communicator->receive(RankId(1 - number), arena.subspan(2000, 1000));
        handle->wait();
        communicator->barrier(idsAt<RankId>({0, 1}));
        require(hasSegmentsMapped(), "the test cannot see mappings");
      }
      require(!hasSegmentsMapped(), "still mapped");
      require(openDescriptors().size() + 3 == without.size(), "descriptors: {} before, {} after",
              without.size(), openDescriptors().size());
    }));
    made.markDead(RankId(0));
  }
  EXPECT_EQ(openDescriptors(), before);
  EXPECT_FALSE(hasSegmentsMapped());
}

TEST(SharedMemory, AnArenaIsPopulatedBeforeItIsHandedOut) {
  const SharedSegments made = SharedSegments::create(1);
  expectSuccess(runRanks(1, [&](int) {
    auto communicator =
        SharedMemoryCommunicator::open(SharedSegments::inherit(made.describe()), RankId(0), 1s);
    const auto arena = communicator->createArena((8 << 20) + 100);
    std::vector<unsigned char> resident((arena.size() + 4095) / 4096);
    require(::mincore(arena.data(), arena.size(), resident.data()) == 0, "mincore");
    for (const unsigned char page : resident) require((page & 1) != 0, "a page is missing");
  }));
}

TEST(SharedMemory, AnArenaLargerThanTheMemoryIsRefusedByItsSize) {
  const SharedSegments made = SharedSegments::create(1);
  const auto results = runRanks(1, [&](int) {
    auto communicator =
        SharedMemoryCommunicator::open(SharedSegments::inherit(made.describe()), RankId(0), 1s);
    communicator->createArena(size_t{1} << 50);
  });
  expectError(results[0], ErrorCode::kOutOfMemory, {"1125899906842624 bytes", "rank 0"});
}

TEST(SharedMemory, ArenasMadeAtTheSameTimeAreCountedTogether) {
  SharedSegments made = SharedSegments::create(2);
  const size_t available = availableMemory();
  // Rank 1 has promised to touch nearly all memory: what its counter says while it populates a huge arena.
  const auto counter =
      static_cast<off_t>(shm::ranksOffset() + sizeof(shm::RankState) + offsetof(shm::RankState, unpopulated));
  const auto results = runRanks(2, [&](int number) {
    auto communicator =
        SharedMemoryCommunicator::open(SharedSegments::inherit(made.describe()), RankId(number), 20s);
    if (number == 1) {
      const uint64_t promised = available - (size_t{32} << 20);
      require(::pwrite(made.controlDescriptor(), &promised, sizeof(promised), counter) == 8, "pwrite");
      communicator->barrier(idsAt<RankId>({0, 1}));
      communicator->barrier(idsAt<RankId>({0, 1}));
      return;
    }
    communicator->barrier(idsAt<RankId>({0, 1}));
    bool refused = false;
    try {
      communicator->createArena(size_t{1} << 20);
    } catch (const Error& error) {
      refused = error.code() == ErrorCode::kOutOfMemory;
    }
    require(refused, "the promise of rank 1 was not counted");
    communicator->barrier(idsAt<RankId>({0, 1}));
  });
  expectSuccess(results);
}

TEST(SharedMemory, AnArenaIsMadeOnce) {
  const SharedSegments made = SharedSegments::create(1);
  const auto results = runRanks(1, [&](int) {
    auto communicator =
        SharedMemoryCommunicator::open(SharedSegments::inherit(made.describe()), RankId(0), 1s);
    require(communicator->createArena(0).empty(), "not empty");
    communicator->createArena(4096);
  });
  expectError(results[0], ErrorCode::kInternal, {"twice"});
}

TEST(SharedMemory, ARankOpensOnce) {
  const SharedSegments made = SharedSegments::create(1);
  const auto results = runRanks(1, [&](int) {
    const std::string text = made.describe();
    const auto first = SharedMemoryCommunicator::open(SharedSegments::inherit(text), RankId(0), 1s);
    SharedSegments again = SharedSegments::inherit(text);
    const auto second = SharedMemoryCommunicator::open(std::move(again), RankId(0), 1s);
  });
  expectError(results[0], ErrorCode::kInternal, {"twice"});
}

TEST(SharedMemory, ArenaAndOtherMemoryMix) {
  SharedSegments made = SharedSegments::create(2);
  expectSuccess(runRanks(2, [&](int number) {
    auto communicator =
        SharedMemoryCommunicator::open(SharedSegments::inherit(made.describe()), RankId(number), 10s);
    const auto arena = communicator->createArena(4 << 20);
    std::vector<std::byte> heap(1 << 20);
    const auto fill = [](std::span<std::byte> data, int value) {
      std::memset(data.data(), value, data.size());
    };
    if (number == 0) {
      fill(heap, 7);
      fill(arena.first(heap.size()), 9);
      std::vector<std::unique_ptr<SendHandle>> handles;
      for (int i = 0; i < 20; ++i)
        handles.push_back(communicator->send(
            RankId(1), i % 2 == 0 ? std::span<const std::byte>(heap) : arena.first(heap.size())));
      // The last bytes of the arena, and bytes that only begin inside it, are no different to the receiver.
      handles.push_back(communicator->send(RankId(1), arena.last(1)));
      for (const auto& handle : handles) handle->wait();
    } else {
      for (int i = 0; i < 20; ++i) {
        const std::span<std::byte> target =
            i % 3 == 0 ? std::span<std::byte>(heap) : arena.first(heap.size());
        communicator->receive(RankId(0), target);
        for (const std::byte b : target) require(b == std::byte(i % 2 == 0 ? 7 : 9), "message {}", i);
      }
      communicator->receive(RankId(0), arena.first(1));
    }
  }));
}

TEST(SharedMemory, ARankMaySendToItself) {
  SharedSegments made = SharedSegments::create(1);
  expectSuccess(runRanks(1, [&](int) {
    auto communicator =
        SharedMemoryCommunicator::open(SharedSegments::inherit(made.describe()), RankId(0), 2s);
    std::vector<std::byte> from(3 << 20, std::byte{5});
    std::vector<std::byte> to(from.size());
    const auto handle = communicator->send(RankId(0), from);
    communicator->receive(RankId(0), to);
    handle->wait();
    require(from == to, "other bytes");
  }));
}

// A rank that waits does not burn its core.
TEST(SharedMemory, WaitingSleeps) {
  SharedSegments made = SharedSegments::create(2);
  expectSuccess(runRanks(2, [&](int number) {
    auto communicator =
        SharedMemoryCommunicator::open(SharedSegments::inherit(made.describe()), RankId(number), 10s);
    if (number == 1) std::this_thread::sleep_for(500ms);
    communicator->barrier(idsAt<RankId>({0, 1}));
    const double used = static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
    require(used < 0.1, "{} s of processor time in a wait of 0.5 s", used);
  }));
}

TEST(AvailableMemory, IsLessThanTheMachineHas) {
  const size_t available = availableMemory();
  EXPECT_GT(available, size_t{1} << 20);
  EXPECT_LE(available,
            static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
}

}  // namespace
}  // namespace pipeshard::testing
