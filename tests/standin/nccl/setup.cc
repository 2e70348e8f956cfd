#include "tests/standin/nccl/setup.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <thread>
#include <tuple>

#include "tests/standin/heap.h"
#include "tests/standin/nccl/watch.h"

namespace standin::nccl {
namespace {

std::string shortName(uint64_t id) {
  char text[40];
  std::snprintf(text, sizeof text, "communicator %04x", static_cast<unsigned>(id & 0xFFFF));
  return text;
}

bool allAre(const Communicator& communicator, Phase phase) {
  for (int rank = 0; rank < communicator.ranks; ++rank) {
    if (communicator.block->members[rank].phase < phase) return false;
  }
  return true;
}

// STANDIN_NCCL_SHARE_GPU: ranks may share one, though NCCL refuses it.
void checkDevices(Communicator& communicator) {
  const Member* members = communicator.block->members;
  for (int b = 1; b < communicator.ranks; ++b) {
    for (int a = 0; a < b; ++a) {
      if (members[a].device != members[b].device) continue;
      const std::string what = "rank " + std::to_string(a) + " and rank " + std::to_string(b) +
                               " are both on GPU " + std::to_string(members[a].device);
      if (std::getenv("STANDIN_NCCL_SHARE_GPU") == nullptr)
        return fail(communicator, ncclInvalidUsage, "Duplicate GPU detected: " + what);
      std::fprintf(stderr, "stand-in NCCL: %s: allowed here, refused by NCCL\n", what.c_str());
    }
  }
}

// Two processes that share two communicators have made them in one order.
void checkOrder(const Communicator& communicator) {
  for (const auto& other : communicators()) {
    if (other->block == nullptr || other.get() == &communicator) continue;
    for (int a = 0; a < communicator.ranks; ++a) {
      const Member& here = communicator.block->members[a];
      for (int b = 0; b < other->ranks; ++b) {
        const Member& there = other->block->members[b];
        if (there.process != here.process || there.phase == Phase::kAbsent) continue;
        const bool mine_first = communicator.created < other->created,
                   theirs_first = here.created < there.created;
        if (communicator.created == other->created || here.created == there.created ||
            mine_first == theirs_first)
          continue;
        const Communicator& first = mine_first ? communicator : *other;
        const Communicator& second = mine_first ? *other : communicator;
        report("NCCL, communicators made in two orders: " + describe(first) + " before " + second.name +
               ", and the other way round in process " + std::to_string(here.process));
      }
    }
  }
}

bool isComplete(Communicator& communicator) {
  const Held held(*communicator.block);
  meetProcesses(communicator);
  if (communicator.hasFailed()) return true;
  if (!allAre(communicator, Phase::kJoined)) return false;
  checkOrder(communicator);
  checkDevices(communicator);
  if (!communicator.hasFailed()) communicator.state = ncclSuccess;
  return true;
}

void enter(Communicator& communicator) {
  Block& block = *communicator.block;
  const Held held(block);
  Member& self = communicator.self();
  if (block.ranks != 0 && block.ranks != communicator.ranks) {
    const std::string what = std::to_string(communicator.ranks) + " ranks here, " +
                             std::to_string(block.ranks) + " at a rank that came before";
    report("NCCL, " + describe(communicator) + ": " + what);
    return fail(communicator, ncclInvalidUsage, what);
  }
  if (self.phase != Phase::kAbsent) {
    report("NCCL, " + describe(communicator) + " joins twice: process " + std::to_string(self.process));
    return fail(communicator, ncclInvalidUsage, "the rank has joined before");
  }
  block.ranks = communicator.ranks;
  self.process = ::getpid();
  self.device = communicator.machine_device;
  self.created = communicator.created;
  self.phase = Phase::kJoined;
  communicator.entered = true;
}

Split& slotOf(Communicator& parent, int rank, uint64_t number) {
  return parent.block->members[rank].splits[number % kSplitSlots];
}

// The ranks of the parent with this color, by key; empty: not all have said theirs.
std::vector<int> ranksOf(Communicator& parent, uint64_t number, int color) {
  std::vector<std::tuple<int, int>> found;
  for (int rank = 0; rank < parent.ranks; ++rank) {
    const Split& one = slotOf(parent, rank, number);
    if (one.number != number) return {};
    if (one.color == color) found.emplace_back(one.key, rank);
  }
  std::ranges::sort(found);
  std::vector<int> ranks;
  for (const auto& [key, rank] : found) ranks.push_back(rank);
  return ranks;
}

// Its place, when the first of its ranks has made it.
bool goOnWithSplit(const std::shared_ptr<Communicator>& child, Communicator& parent, uint64_t number,
                   int color) {
  if (parent.hasFailed()) {
    fail(*child, parent.state, "its parent has failed");
    return true;
  }
  Place place;
  std::vector<int> ranks;
  {
    const Held held(*parent.block);
    ranks = ranksOf(parent, number, color);
    if (ranks.empty()) return false;
    if (color < 0) {
      child->state = ncclSuccess;
      return true;
    }
    Place& made = slotOf(parent, ranks[0], number).child;
    if (made.process == 0 && ranks[0] == parent.rank) made = makeBlock();
    if (made.process == 0) return false;
    place = made;
  }
  const auto self = std::ranges::find(ranks, parent.rank);
  join(child, place, static_cast<int>(self - ranks.begin()), static_cast<int>(ranks.size()));
  return false;  // its setup is another one now
}

std::string absentRanks(const Communicator& communicator) {
  std::string text;
  for (int rank = 0; communicator.block != nullptr && rank < communicator.ranks; ++rank) {
    if (communicator.block->members[rank].phase <
        (communicator.finalizing ? Phase::kFinalized : Phase::kJoined))
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return text.empty() ? "the other ranks" : text;
}

}  // namespace

void join(const std::shared_ptr<Communicator>& communicator, const Place& place, int rank, int ranks) {
  communicator->rank = rank;
  communicator->ranks = ranks;
  communicator->name = shortName(place.id);
  for (auto* counters : {&communicator->sends, &communicator->receives, &communicator->sends_done,
                         &communicator->receives_done})
    counters->assign(ranks, 0);
  communicator->processes.assign(ranks, -1);
  communicator->connected.assign(ranks + 1, false);
  communicator->block = openBlock(place);
  if (communicator->block == nullptr)
    return fail(*communicator, ncclSystemError, "the process that made the id has vanished");
  enter(*communicator);
  communicator->setup = [communicator = communicator.get()] { return isComplete(*communicator); };
}

std::shared_ptr<Communicator> split(const std::shared_ptr<Communicator>& parent, int color, int key) {
  auto child = std::make_shared<Communicator>();
  child->blocking = parent->blocking;
  child->device = parent->device;
  child->machine_device = parent->machine_device;
  child->created = nextCreation(true);
  child->name = "a split of " + parent->name;
  const uint64_t number = ++parent->splits;
  {
    const Held held(*parent->block);
    slotOf(*parent, parent->rank, number) = {number, color, key, {}};
  }
  child->setup = [weak = std::weak_ptr(child), parent, number, color] {
    const auto self = weak.lock();
    return goOnWithSplit(self, *parent, number, color);
  };
  return child;
}

void finalize(const std::shared_ptr<Communicator>& communicator) {
  communicator->finalizing = true;
  communicator->state = ncclInProgress;
  communicator->setup = [communicator = communicator.get()] {
    if (!isQuiet(*communicator)) return false;
    const Held held(*communicator->block);
    communicator->self().phase = Phase::kFinalized;
    if (!allAre(*communicator, Phase::kFinalized)) return false;
    communicator->state = ncclSuccess;
    communicator->finalized = true;
    return true;
  };
}

ncclResult_t waitFor(const std::shared_ptr<Communicator>& communicator, const std::string& what) {
  const auto began = std::chrono::steady_clock::now();
  while (true) {
    {
      const std::lock_guard held(lock());
      if (!communicator->setup) return communicator->state;
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - began;
      if (waited.count() > patience()) {
        report("NCCL, " + what + " of " + describe(*communicator) + " waits for " +
               absentRanks(*communicator));
        fail(*communicator, ncclSystemError, what + " has waited too long");
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void takeDevice(Communicator& communicator) {
  cudaGetDevice(&communicator.device);
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, communicator.device);
  communicator.machine_device = properties.uuid.bytes[0] - 1;  // none is all zeros
}

uint64_t nextCreation(bool another) {
  static uint64_t number = 0;
  if (another) ++number;
  return number;
}

}  // namespace standin::nccl
