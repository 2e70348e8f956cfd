#include "tests/standin/nccl/watch.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "tests/standin/heap.h"

namespace standin::nccl {
namespace {

constexpr std::chrono::microseconds kPause{200};
constexpr int kPausesBetweenLooks = 20;

uint64_t moves = 0;

double secondsSince(Time then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

void setUp(Communicator& communicator) {
  if (!communicator.setup) return;
  const auto step = communicator.setup;  // which may put the next one in its place
  if (communicator.hasFailed() || step()) communicator.setup = nullptr;
}

bool isGone(int process) {
  pollfd asked{process, POLLIN, 0};
  return process >= 0 && ::poll(&asked, 1, 0) > 0;
}

void lookForPeers(Communicator& communicator) {
  if (communicator.block == nullptr || communicator.hasFailed() || communicator.finalized) return;
  const Held held(*communicator.block);
  const Member* members = communicator.block->members;
  for (int peer = 0; peer < communicator.ranks; ++peer) {
    if (isGone(communicator.processes[peer]) && members[peer].phase < Phase::kLeft)
      return fail(
          communicator, ncclRemoteError,
          "rank " + std::to_string(peer) + " has vanished: process " + std::to_string(members[peer].process));
  }
  for (int peer = 0; peer < communicator.ranks; ++peer) {
    if (members[peer].phase == Phase::kAborted && !communicator.launches.empty())
      return fail(communicator, ncclRemoteError, "rank " + std::to_string(peer) + " has aborted");
  }
}

std::string describePeer(Communicator& communicator, int peer) {
  const Member& member = communicator.block->members[peer];
  std::string text;
  for (int i = 0; i < member.elements; ++i) text += (i == 0 ? " is in " : ", ") + describe(member.element[i]);
  return "rank " + std::to_string(peer) + (text.empty() ? " has no kernel there" : text);
}

std::string describeWait(const Launch& launch) {
  Communicator& communicator = *launch.communicator;
  const Launch& first = *communicator.launches.front();
  if (&first != &launch)
    return "comes behind " + describe(first) + " on stream " + std::to_string(first.operation.line);
  if (!launch.resident) return "finds no room: " + std::to_string(mostResident()) + " kernels are resident";
  const Held held(*communicator.block);
  std::string text = "waits";
  for (int peer = 0; peer < communicator.ranks; ++peer) {
    const bool asked = std::ranges::any_of(launch.pieces, [&](const Piece& piece) {
      const bool pair = piece.element.call == Call::kSend || piece.element.call == Call::kRecv;
      return !piece.finished && (pair ? piece.element.peer == peer : !piece.met[peer]);
    });
    if (asked) text += "; " + describePeer(communicator, peer);
  }
  return text;
}

void tellDeadlock() {
  for (const auto& communicator : communicators()) {
    bool stuck = false;
    for (const auto& launch : communicator->launches) {
      if (!launch->reached) continue;
      stuck = true;
      report("NCCL, nothing moves: stream " + std::to_string(launch->operation.line) + ", " +
             describe(*launch) + " (" + describe(*communicator) + ") " + describeWait(*launch));
    }
    if (!stuck) continue;
    {
      const Held held(*communicator->block);
      communicator->block->deadlocked = 1;
    }
    fail(*communicator, ncclInternalError, "nothing moves");
  }
}

// Nothing has moved in any process of this communicator for too long, and a launch waits.
bool isStill(Communicator& communicator) {
  const bool waits =
      std::ranges::any_of(communicator.launches, [](const auto& launch) { return launch->reached; });
  if (communicator.block == nullptr || communicator.hasFailed()) return false;
  uint64_t all = 0;
  bool told = false;
  {
    const Held held(*communicator.block);
    communicator.self().moves = moves + operationsDone();
    for (int peer = 0; peer < communicator.ranks; ++peer) all += communicator.block->members[peer].moves;
    told = communicator.block->deadlocked != 0;
  }
  if (!waits || all != communicator.moves_seen) communicator.still_since = std::chrono::steady_clock::now();
  communicator.moves_seen = all;
  return waits && (told || secondsSince(communicator.still_since) > patience());
}

void endIfNobodyAborts(const Communicator& communicator) {
  if (!communicator.hasFailed() || communicator.launches.empty()) return;
  if (secondsSince(communicator.failed_at) < patience()) return;
  report("NCCL, " + describe(communicator) +
         " has failed, blocks its streams and is not aborted: " + communicator.last_error);
  std::fflush(nullptr);
  std::_Exit(99);
}

void look() {
  const auto still = [](const auto& communicator) { return isStill(*communicator); };
  if (std::ranges::count_if(communicators(), still) > 0) tellDeadlock();
  for (const auto& communicator : communicators()) lookForPeers(*communicator);
  for (const auto& communicator : communicators()) endIfNobodyAborts(*communicator);
}

void serve() {
  for (int pause = 0;; ++pause) {
    std::this_thread::sleep_for(kPause);
    const std::lock_guard held(lock());
    const auto all = communicators();
    for (const auto& communicator : all) {
      setUp(*communicator);
      if (communicator->hasFailed() || !isWanted(*communicator)) continue;
      const std::shared_ptr<Launch> first = communicator->launches.front();
      advance(*first->stream, first->operation.id);
    }
    if (pause % kPausesBetweenLooks == 0) look();
  }
}

struct AtExit {
  ~AtExit() {
    const std::lock_guard held(lock());
    for (const auto& communicator : communicators())
      report("NCCL, a communicator is left at exit: " + describe(*communicator));
  }
} at_exit;

}  // namespace

std::vector<std::shared_ptr<Communicator>>& communicators() {
  static auto* const all = new std::vector<std::shared_ptr<Communicator>>;
  return *all;
}

void watch(const std::shared_ptr<Communicator>& communicator) {
  static const bool started = (std::thread(serve).detach(), true);
  static_cast<void>(started);
  communicators().push_back(communicator);
}

void unwatch(const std::shared_ptr<Communicator>& communicator) { std::erase(communicators(), communicator); }

void moved() { ++moves; }

double patience() {
  static const double seconds = [] {
    const char* text = std::getenv("STANDIN_NCCL_SECONDS");
    return text == nullptr ? 60.0 : std::atof(text);
  }();
  return seconds;
}

void meetProcesses(Communicator& communicator) {
  for (int peer = 0; peer < communicator.ranks; ++peer) {
    int& process = communicator.processes[peer];
    const Member& member = communicator.block->members[peer];
    if (process < 0 && member.phase != Phase::kAbsent)
      process = static_cast<int>(::syscall(SYS_pidfd_open, member.process, 0));
    if (process < 0 && member.phase != Phase::kAbsent && member.phase < Phase::kLeft)
      fail(communicator, ncclRemoteError, "rank " + std::to_string(peer) + " has vanished");
  }
}

}  // namespace standin::nccl
