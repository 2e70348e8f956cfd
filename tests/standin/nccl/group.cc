#include "tests/standin/nccl/group.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "tests/standin/heap.h"
#include "tests/standin/nccl/setup.h"

namespace standin::nccl {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t failed = ncclSuccess;
  std::vector<Planned> calls;
  std::vector<std::shared_ptr<Communicator>> made;
};

thread_local Group group;

// Whether it meets a rank that it has not met, or all of them, for the first time; now it has.
bool isFirst(Communicator& communicator, const std::vector<Piece>& pieces) {
  bool first = false;
  for (const Piece& piece : pieces) {
    const bool pair = piece.element.call == Call::kSend || piece.element.call == Call::kRecv;
    auto met = communicator.connected[pair ? piece.element.peer : communicator.ranks];
    first = first || !met;
    met = true;
  }
  return first;
}

// Of one communicator, in the order of the calls.
ncclResult_t launchOf(const std::shared_ptr<Communicator>& communicator, std::vector<Planned>& calls) {
  std::vector<Piece> pieces;
  std::vector<Stream*> streams;
  for (Planned& call : calls) {
    if (call.communicator != communicator) continue;
    pieces.push_back(std::move(call.piece));
    if (std::ranges::find(streams, call.stream) == streams.end()) streams.push_back(call.stream);
  }
  if (pieces.size() > kMostElements) {
    report("NCCL, a group of " + std::to_string(pieces.size()) + " calls: at most " +
           std::to_string(kMostElements) + " are known here");
    return ncclInvalidUsage;
  }
  if (communicator->blocking || !isFirst(*communicator, pieces)) {
    launch(communicator, std::move(pieces), streams);
    return ncclSuccess;
  }
  communicator->state = ncclInProgress;
  communicator->deferred = [weak = std::weak_ptr(communicator), pieces, streams] {
    if (const auto self = weak.lock()) launch(self, pieces, streams);
  };
  return ncclInProgress;
}

}  // namespace

bool isInGroup() { return group.depth > 0; }
bool groupMakes() { return !group.made.empty(); }
void startGroup() { ++group.depth; }
void addCall(Planned call) { group.calls.push_back(std::move(call)); }
void addMade(const std::shared_ptr<Communicator>& communicator) { group.made.push_back(communicator); }
void failGroup(ncclResult_t code) {
  if (group.failed == ncclSuccess) group.failed = code;
}

ncclResult_t endGroup() {
  if (--group.depth > 0) return ncclSuccess;
  Group ended = std::exchange(group, {});
  ncclResult_t result = ended.failed;
  for (const auto& communicator : ended.made) {
    const ncclResult_t one =
        communicator->blocking ? waitFor(communicator, "ncclCommInitRank") : ncclInProgress;
    if (result == ncclSuccess) result = one;
  }
  if (ended.failed != ncclSuccess) return result;
  const std::lock_guard held(lock());
  std::vector<std::shared_ptr<Communicator>> launched;
  for (size_t i = 0; i < ended.calls.size(); ++i) {
    const auto communicator = ended.calls[i].communicator;
    if (std::ranges::find(launched, communicator) != launched.end()) continue;
    launched.push_back(communicator);
    const ncclResult_t one = launchOf(communicator, ended.calls);
    if (result == ncclSuccess || (result == ncclInProgress && one != ncclSuccess)) result = one;
  }
  return result;
}

}  // namespace standin::nccl
