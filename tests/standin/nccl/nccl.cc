// libnccl, the part that the module calls. See ../README.md.
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/standin/heap.h"
#include "tests/standin/lines.h"
#include "tests/standin/nccl/group.h"
#include "tests/standin/nccl/reduction.h"
#include "tests/standin/nccl/setup.h"
#include "tests/standin/nccl/watch.h"

#define API extern "C" __attribute__((visibility("default")))

using namespace standin;
using namespace standin::nccl;

namespace {

std::string& lastError() {
  static thread_local std::string text;
  return text;
}

ncclResult_t refuse(const std::string& what, ncclResult_t code = ncclInvalidArgument) {
  lastError() = what;
  const std::lock_guard held(lock());
  report("NCCL, " + what);
  return code;
}

ncclComm_t handleOf(const std::shared_ptr<Communicator>& communicator) {
  return reinterpret_cast<ncclComm_t>(communicator.get());
}

// Nothing after a report. Under the lock.
std::shared_ptr<Communicator> find(ncclComm_t handle, const char* what) {
  for (const auto& one : communicators()) {
    if (handleOf(one) == handle) return one;
  }
  refuse(std::string(what) + ": no communicator, or destroyed");
  return nullptr;
}

ncclResult_t asError(const Communicator& communicator) {
  lastError() = communicator.last_error;
  return communicator.state;
}

// ncclSuccess: it may be used.
ncclResult_t check(const Communicator& communicator, const char* what) {
  if (communicator.hasFailed()) return asError(communicator);
  if (communicator.state == ncclInProgress)
    return refuse(std::string(what) + " while " + describe(communicator) + " is ncclInProgress",
                  ncclInvalidUsage);
  if (communicator.finalizing)
    return refuse(std::string(what) + " after ncclCommFinalize of " + describe(communicator),
                  ncclInvalidUsage);
  return ncclSuccess;
}

bool isBlocking(const ncclConfig_t* config, bool otherwise) {
  return config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT ? otherwise : config->blocking != 0;
}

bool isConfig(const ncclConfig_t* config) {
  const ncclConfig_t want = NCCL_CONFIG_INITIALIZER;
  return config == nullptr || (config->magic == want.magic && config->size == want.size);
}

// Of a communicator that is destroyed or aborted.
void drop(const std::shared_ptr<Communicator>& communicator, Phase phase) {
  if (communicator->entered) {
    const Held held(*communicator->block);
    communicator->self().phase = phase;
  }
  unwatch(communicator);
}

// The child of a split is given when the parent's state is asked for.
void giveChild(Communicator& parent) {
  const std::shared_ptr<Communicator> child = parent.split_child;
  if (child == nullptr || child->setup) return;
  parent.split_child = nullptr;
  if (child->hasFailed()) return fail(parent, child->state, child->last_error);
  parent.state = ncclSuccess;
  if (child->block == nullptr)
    unwatch(child);
  else
    *parent.split_place = handleOf(child);
}

}  // namespace

API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard held(lock());
  const Place place = makeBlock();
  *id = {};
  std::memcpy(id->internal, &place, sizeof place);
  return ncclSuccess;
}
API const char* ncclGetErrorString(ncclResult_t result) {
  static const char* const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}
API const char* ncclGetLastError(ncclComm_t handle) {
  const std::lock_guard held(lock());
  for (const auto& one : communicators()) {
    if (handleOf(one) == handle) lastError() = one->last_error;
  }
  return lastError().c_str();
}

// --- communicators

API ncclResult_t ncclCommInitRankConfig(ncclComm_t* place, int ranks, ncclUniqueId id, int rank,
                                        ncclConfig_t* config) {
  if (!isConfig(config)) return refuse("ncclCommInitRankConfig: a config without NCCL_CONFIG_INITIALIZER");
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks)
    return refuse("ncclCommInitRankConfig: rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  auto communicator = std::make_shared<Communicator>();
  {
    const std::lock_guard held(lock());
    communicator->blocking = isBlocking(config, true);
    communicator->created = nextCreation(!isInGroup() || !groupMakes());
    takeDevice(*communicator);
    Place of;
    std::memcpy(&of, id.internal, sizeof of);
    join(communicator, of, rank, ranks);
    watch(communicator);
  }
  *place = handleOf(communicator);
  if (isInGroup()) {
    addMade(communicator);
    return ncclSuccess;
  }
  if (!communicator->blocking) return ncclInProgress;
  const ncclResult_t result = waitFor(communicator, "ncclCommInitRank");
  if (result == ncclSuccess) return result;
  const std::lock_guard held(lock());
  lastError() = communicator->last_error;
  drop(communicator, Phase::kAborted);
  *place = nullptr;
  return result;
}
API ncclResult_t ncclCommInitRank(ncclComm_t* place, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(place, ranks, id, rank, nullptr);
}

API ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* place,
                               ncclConfig_t* config) {
  std::shared_ptr<Communicator> parent, child;
  {
    const std::lock_guard held(lock());
    if (isInGroup()) return refuse("ncclCommSplit in a group: not known here", ncclInvalidUsage);
    if (!isConfig(config)) return refuse("ncclCommSplit: a config without NCCL_CONFIG_INITIALIZER");
    parent = find(handle, "ncclCommSplit");
    if (parent == nullptr) return ncclInvalidArgument;
    if (const ncclResult_t wrong = check(*parent, "ncclCommSplit"); wrong != ncclSuccess) return wrong;
    if (!isQuiet(*parent))
      return refuse("ncclCommSplit of " + describe(*parent) + " while it is at work", ncclInvalidUsage);
    child = split(parent, color, key);
    child->blocking = isBlocking(config, parent->blocking);
    parent->state = ncclInProgress;
    parent->split_child = child;
    parent->split_place = place;
    *place = nullptr;
    watch(child);
  }
  if (!parent->blocking) return ncclInProgress;
  waitFor(child, "ncclCommSplit");
  const std::lock_guard held(lock());
  giveChild(*parent);
  if (child->hasFailed()) drop(child, Phase::kAborted);
  return parent->hasFailed() ? asError(*parent) : ncclSuccess;
}

API ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* state) {
  const std::lock_guard held(lock());
  const auto communicator = find(handle, "ncclCommGetAsyncError");
  if (communicator == nullptr) return ncclInvalidArgument;
  giveChild(*communicator);
  if (communicator->deferred && !communicator->hasFailed()) {
    communicator->state = ncclSuccess;
    std::exchange(communicator->deferred, nullptr)();
  }
  *state = communicator->state;
  return ncclSuccess;
}

API ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard held(lock());
    communicator = find(handle, "ncclCommFinalize");
    if (communicator == nullptr) return ncclInvalidArgument;
    const ncclResult_t wrong = check(*communicator, "ncclCommFinalize");
    if (wrong != ncclSuccess) return wrong;
    finalize(communicator);
  }
  return communicator->blocking ? waitFor(communicator, "ncclCommFinalize") : ncclInProgress;
}

API ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard held(lock());
    communicator = find(handle, "ncclCommDestroy");
    if (communicator == nullptr) return ncclInvalidArgument;
    if (communicator->hasFailed())
      return refuse("ncclCommDestroy of " + describe(*communicator) + ", which has failed: abort it",
                    ncclInvalidUsage);
    if (communicator->state == ncclInProgress)
      return refuse("ncclCommDestroy of " + describe(*communicator) + ", which is ncclInProgress",
                    ncclInvalidUsage);
    if (!communicator->finalized) finalize(communicator);
  }
  const ncclResult_t result = waitFor(communicator, "ncclCommDestroy");
  const std::lock_guard held(lock());
  if (result == ncclSuccess) drop(communicator, Phase::kLeft);
  return result;
}

API ncclResult_t ncclCommAbort(ncclComm_t handle) {
  const std::lock_guard held(lock());
  const auto communicator = find(handle, "ncclCommAbort");
  if (communicator == nullptr) return ncclInvalidArgument;
  abort(*communicator);
  unwatch(communicator);
  return ncclSuccess;
}

API ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  const std::lock_guard held(lock());
  const auto communicator = find(handle, "ncclCommCount");
  if (communicator != nullptr) *count = communicator->ranks;
  return communicator == nullptr ? ncclInvalidArgument : ncclSuccess;
}
API ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  const std::lock_guard held(lock());
  const auto communicator = find(handle, "ncclCommUserRank");
  if (communicator != nullptr) *rank = communicator->rank;
  return communicator == nullptr ? ncclInvalidArgument : ncclSuccess;
}
API ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  const std::lock_guard held(lock());
  const auto communicator = find(handle, "ncclCommCuDevice");
  if (communicator != nullptr) *device = communicator->device;
  return communicator == nullptr ? ncclInvalidArgument : ncclSuccess;
}

// --- groups and calls

namespace {

// Of memory where a kernel of NCCL may go; empty: it may.
std::string wrongMemory(const void* at, size_t bytes) {
  if (bytes == 0 || (inHeap(at) && !isPinned(at))) return {};
  return "memory that is not the device's: " + describeAddress(at);
}

// Sends and results are apart, or where NCCL works in place.
std::string wrongOverlap(const Communicator& communicator, const Piece& piece) {
  const auto* from = static_cast<const std::byte*>(piece.from);
  const auto* to = static_cast<const std::byte*>(piece.to);
  if (piece.from_bytes == 0 || piece.to_bytes == 0) return {};
  if (from + piece.from_bytes <= to || to + piece.to_bytes <= from) return {};
  const std::byte* in_place = to;
  if (piece.element.call == Call::kAllGather) in_place += piece.from_bytes * communicator.rank;
  if (piece.element.call == Call::kReduceScatter) in_place -= piece.to_bytes * communicator.rank;
  return from == in_place ? "" : "what it sends and what it receives overlap";
}

// What this rank reads and writes.
void setMemory(const Communicator& communicator, Piece& piece, const void* from, void* to) {
  const Element& element = piece.element;
  const size_t bytes = element.count * sizeOf(element.type), all = bytes * communicator.ranks;
  const bool root = element.peer == communicator.rank;
  switch (element.call) {
    case Call::kAllReduce: piece.from_bytes = piece.to_bytes = bytes; break;
    case Call::kAllGather: piece.from_bytes = bytes, piece.to_bytes = all; break;
    case Call::kReduceScatter: piece.from_bytes = all, piece.to_bytes = bytes; break;
    case Call::kBroadcast: piece.from_bytes = root ? bytes : 0, piece.to_bytes = bytes; break;
    case Call::kReduce: piece.from_bytes = bytes, piece.to_bytes = root ? bytes : 0; break;
    case Call::kSend: piece.from_bytes = bytes; break;
    case Call::kRecv: piece.to_bytes = bytes; break;
  }
  piece.from = from;
  piece.to = to;
}

std::string wrongWith(const Communicator& communicator, const Piece& piece, const Stream* stream) {
  const Element& element = piece.element;
  if (sizeOf(element.type) == 0) return "a type that is not known here";
  if (!isKnown(element.op)) return "an operator that is not known here";
  if (element.peer < 0 || element.peer >= communicator.ranks)
    return "there is no such rank among " + std::to_string(communicator.ranks);
  if (stream == nullptr) return "the default stream is used";
  if (!isStream(stream)) return "no stream, or destroyed";
  if (const std::string wrong = wrongMemory(piece.from, piece.from_bytes); !wrong.empty()) return wrong;
  if (const std::string wrong = wrongMemory(piece.to, piece.to_bytes); !wrong.empty()) return wrong;
  return wrongOverlap(communicator, piece);
}

ncclResult_t call(ncclComm_t handle, const Element& element, const void* from, void* to, cudaStream_t at) {
  auto* stream = reinterpret_cast<Stream*>(at);
  const auto tell = [&](ncclResult_t code) {
    if (isInGroup()) failGroup(code);
    return code;
  };
  std::optional<Planned> planned;
  {
    const std::lock_guard held(lock());
    const auto communicator = find(handle, describe(element).c_str());
    if (communicator == nullptr) return tell(ncclInvalidArgument);
    if (const ncclResult_t wrong = check(*communicator, describe(element).c_str()); wrong != ncclSuccess)
      return tell(wrong);
    Piece piece;
    piece.element = element;
    setMemory(*communicator, piece, from, to);
    const std::string wrong = wrongWith(*communicator, piece, stream);
    if (!wrong.empty())
      return tell(refuse(describe(element) + " at " + describe(*communicator) + ": " + wrong));
    const bool pair = element.call == Call::kSend || element.call == Call::kRecv;
    if (element.count == 0 && !pair) return ncclSuccess;  // as NCCL has it: no kernel
    planned = Planned{communicator, std::move(piece), stream};
  }
  startGroup();
  addCall(std::move(*planned));
  return endGroup();
}

}  // namespace

API ncclResult_t ncclGroupStart() {
  startGroup();
  return ncclSuccess;
}
API ncclResult_t ncclGroupEnd() {
  if (!isInGroup()) return refuse("ncclGroupEnd without ncclGroupStart", ncclInvalidUsage);
  return endGroup();
}

API ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t communicator, cudaStream_t stream) {
  return call(communicator, {Call::kAllReduce, type, op, 0, count}, from, to, stream);
}
API ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                                   ncclRedOp_t op, ncclComm_t communicator, cudaStream_t stream) {
  return call(communicator, {Call::kReduceScatter, type, op, 0, count}, from, to, stream);
}
API ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclComm_t communicator, cudaStream_t stream) {
  return call(communicator, {Call::kAllGather, type, ncclSum, 0, count}, from, to, stream);
}
API ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                               ncclComm_t communicator, cudaStream_t stream) {
  return call(communicator, {Call::kBroadcast, type, ncclSum, root, count}, from, to, stream);
}
API ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            int root, ncclComm_t communicator, cudaStream_t stream) {
  return call(communicator, {Call::kReduce, type, op, root, count}, from, to, stream);
}
API ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                          ncclComm_t communicator, cudaStream_t stream) {
  return call(communicator, {Call::kSend, type, ncclSum, peer, count}, from, nullptr, stream);
}
API ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                          cudaStream_t stream) {
  return call(communicator, {Call::kRecv, type, ncclSum, peer, count}, nullptr, to, stream);
}
