// Scenarios with a mistake: each must be reported. Where it is that ranks wait for ever, they abort when they
// are told of it.
#include <unistd.h>

#include <functional>
#include <map>

#include "tests/standin/nccl/probe/rank.h"

namespace nccl_probe {
namespace {

ncclResult_t sum(Rank& rank, ncclComm_t communicator, cudaStream_t stream, size_t count = kCount) {
  return ncclAllReduce(rank.x, rank.y, count, ncclFloat, ncclSum, communicator, stream);
}

// What a watchful host does: it asks for the state, and aborts.
void awaitFailure(ncclComm_t communicator) {
  ncclResult_t state = ncclSuccess;
  for (int i = 0; i < 2000 && state == ncclSuccess; ++i) {
    require(ncclCommGetAsyncError(communicator, &state));
    ::usleep(2000);
  }
  require(state != ncclSuccess, "it does not fail");
  require(ncclCommAbort(communicator));
}

// Calls that only one of 0 and 1 makes like this; then both ask their streams, until they fail.
void mismatch(Rank& rank, const std::function<ncclResult_t(Rank&, bool)>& call) {
  rank.init();
  rank.fill();
  require(call(rank, rank.rank == 0));
  static_cast<void>(cudaStreamQuery(rank.stream));
  ncclResult_t state = ncclSuccess;
  for (int i = 0; i < 2000 && state == ncclSuccess; ++i) {
    static_cast<void>(cudaStreamQuery(rank.stream));
    require(ncclCommGetAsyncError(rank.communicator, &state));
    ::usleep(2000);
  }
  require(state != ncclSuccess, "it does not fail");
  require(ncclCommAbort(rank.communicator));
}

// A call that is refused at once, at rank 0; the communicator is good after it.
void refused(Rank& rank, const std::function<ncclResult_t(Rank&)>& call) {
  rank.init();
  rank.fill();
  if (rank.rank == 0) require(call(rank) != ncclSuccess, "it is not refused");
  require(ncclCommDestroy(rank.communicator));
}

// One that is reported when it is done; all ranks do it.
void reported(Rank& rank, const std::function<void(Rank&)>& call) {
  rank.init();
  call(rank);
  require(cudaStreamSynchronize(rank.stream));
  require(cudaStreamSynchronize(rank.other));
  require(ncclCommDestroy(rank.communicator));
}

// Both send before they receive, on one stream.
void sendsMeet(Rank& rank, cudaStream_t second) {
  rank.init();
  rank.fill();
  rank.order(rank.stream, rank.other);
  require(ncclSend(rank.x, kCount, ncclFloat, 1 - rank.rank, rank.communicator, rank.stream));
  require(ncclRecv(rank.y, kCount, ncclFloat, 1 - rank.rank, rank.communicator, second));
  static_cast<void>(cudaStreamQuery(rank.stream));
  ::usleep(50000);  // the first one is resident now
  static_cast<void>(cudaStreamQuery(second));
  awaitFailure(rank.communicator);
}

// Two communicators whose kernels come in two orders: right, but where a device has room for one.
void noRoom(Rank& rank) {
  rank.init();
  ncclComm_t second = nullptr;
  require(ncclCommInitRank(&second, rank.ranks, rank.ids[1], rank.rank));
  rank.fill();
  rank.order(rank.stream, rank.other);
  const bool swapped = rank.rank == 1;
  require(sum(rank, swapped ? second : rank.communicator, rank.stream));
  static_cast<void>(cudaStreamQuery(rank.stream));
  ::usleep(100000);  // it is resident now
  require(ncclReduce(rank.x, rank.y + kCount, kCount, ncclFloat, ncclSum, 0,
                     swapped ? rank.communicator : second, rank.other));
  static_cast<void>(cudaStreamQuery(rank.other));
  awaitFailure(rank.communicator);
  awaitFailure(second);
}

void creationOrder(Rank& rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t made[2];
  for (const int i : {rank.rank % 2, 1 - rank.rank % 2})
    static_cast<void>(ncclCommInitRankConfig(&made[i], rank.ranks, rank.ids[i], rank.rank, &config));
  for (const ncclComm_t one : made) require(poll(one));
  for (const ncclComm_t one : made) settle(ncclCommFinalize(one), one);
  for (const ncclComm_t one : made) require(ncclCommDestroy(one));
}

void missingRank(Rank& rank) {
  if (rank.rank == 1) return;
  require(ncclCommInitRank(&rank.communicator, rank.ranks, rank.ids[0], rank.rank) != ncclSuccess, "init");
}

void twice(Rank& rank) {
  require(ncclCommInitRank(&rank.communicator, rank.ranks, rank.ids[0], 0) != ncclSuccess, "init");
}

void otherCount(Rank& rank) {
  require(ncclCommInitRank(&rank.communicator, rank.ranks + rank.rank, rank.ids[0], rank.rank) != ncclSuccess,
          "init");
}

// The first call of a communicator that does not block is not launched yet.
void early(Rank& rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  static_cast<void>(ncclCommInitRankConfig(&rank.communicator, rank.ranks, rank.ids[0], rank.rank, &config));
  require(poll(rank.communicator));
  rank.fill();
  require(sum(rank, rank.communicator, rank.stream) == ncclInProgress, "the first call");
  rank.order(rank.stream, rank.other);  // too early
  require(poll(rank.communicator));
  require(cudaMemcpyAsync(rank.host + kCount, rank.y, 4, cudaMemcpyDeviceToHost, rank.other));
  require(cudaStreamSynchronize(rank.other));
  settle(ncclCommFinalize(rank.communicator), rank.communicator);
  require(ncclCommDestroy(rank.communicator));
}

void inProgress(Rank& rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  rank.fill();
  if (rank.rank == 1) rank.hearLast();
  static_cast<void>(ncclCommInitRankConfig(&rank.communicator, rank.ranks, rank.ids[0], rank.rank, &config));
  if (rank.rank == 0) {  // the other one comes later: it is in progress for sure
    require(sum(rank, rank.communicator, rank.stream) == ncclInvalidUsage, "a call before it is ready");
    rank.tellNext();
  }
  require(poll(rank.communicator));
  settle(ncclCommFinalize(rank.communicator), rank.communicator);
  require(ncclCommDestroy(rank.communicator));
}

using Scenarios = std::map<std::string, std::function<void(Rank&)>>;

Scenarios mismatches() {
  const auto with = [](const std::function<ncclResult_t(Rank&, bool)>& call) {
    return [call](Rank& rank) { mismatch(rank, call); };
  };
  return {
      {"other_collective", with([](Rank& r, bool first) {
         return first ? sum(r, r.communicator, r.stream)
                      : ncclAllGather(r.x, r.y, 4, ncclFloat, r.communicator, r.stream);
       })},
      {"other_size",
       with([](Rank& r, bool first) { return sum(r, r.communicator, r.stream, first ? 4 : 5); })},
      {"other_type", with([](Rank& r, bool first) {
         return ncclAllReduce(r.x, r.y, 4, first ? ncclFloat : ncclInt, ncclSum, r.communicator, r.stream);
       })},
      {"other_operator", with([](Rank& r, bool first) {
         return ncclAllReduce(r.x, r.y, 4, ncclFloat, first ? ncclSum : ncclMax, r.communicator, r.stream);
       })},
      {"other_root", with([](Rank& r, bool first) {
         return ncclBroadcast(r.x, r.y, 4, ncclFloat, first ? 0 : 1, r.communicator, r.stream);
       })},
      {"other_message", with([](Rank& r, bool first) {
         return first ? ncclSend(r.x, 4, ncclFloat, 1, r.communicator, r.stream)
                      : ncclRecv(r.y, 8, ncclFloat, 0, r.communicator, r.stream);
       })},
  };
}

Scenarios refusals() {
  const auto with = [](const std::function<ncclResult_t(Rank&)>& call) {
    return [call](Rank& rank) { refused(rank, call); };
  };
  return {
      {"host_memory", with([](Rank& r) {
         return ncclBroadcast(r.host, r.host, 4, ncclFloat, 0, r.communicator, r.stream);
       })},
      {"default_stream", with([](Rank& r) { return sum(r, r.communicator, nullptr); })},
      {"overlap", with([](Rank& r) {
         return ncclAllReduce(r.x, r.x + 1, 4, ncclFloat, ncclSum, r.communicator, r.stream);
       })},
      {"eight_bits", with([](Rank& r) {
         return ncclAllReduce(r.x, r.y, 4, ncclFloat8e5m2, ncclSum, r.communicator, r.stream);
       })},
      {"no_such_rank",
       with([](Rank& r) { return ncclSend(r.x, 4, ncclFloat, 7, r.communicator, r.stream); })},
      {"no_such_communicator",
       with([](Rank& r) { return sum(r, reinterpret_cast<ncclComm_t>(&r), r.stream); })},
      {"group_end", with([](Rank&) { return ncclGroupEnd(); })},
  };
}

Scenarios others() {
  const auto with = [](const std::function<void(Rank&)>& call) {
    return [call](Rank& rank) { reported(rank, call); };
  };
  return {
      {"unwritten", with([](Rank& r) { require(sum(r, r.communicator, r.stream)); })},
      {"unordered", with([](Rank& r) {
         r.fill();
         require(sum(r, r.communicator, r.other));
       })},
      {"overwritten", with([](Rank& r) {
         r.fill();
         require(sum(r, r.communicator, r.stream));
         require(cudaMemsetAsync(r.x, 0, 4, r.other));  // while it is read
       })},
      {"outside", with([](Rank& r) {
         r.fill();
         require(cudaMemsetAsync(r.y, 0, kRoom * 4, r.stream));
         require(ncclAllGather(r.y, r.x, kRoom, ncclFloat, r.communicator, r.stream));
       })},
      {"left", [](Rank& r) { r.init(); }},
      {"sends_meet", [](Rank& r) { sendsMeet(r, r.stream); }},
      {"one_communicator_two_streams", [](Rank& r) { sendsMeet(r, r.other); }},
      {"not_aborted",
       [](Rank& r) {
         r.init();
         r.fill();
         require(sum(r, r.communicator, r.stream, r.rank == 0 ? 4 : 5));
         require(cudaStreamSynchronize(r.stream));  // for ever
       }},
      {"no_room", noRoom},
      {"creation_order", creationOrder},
      {"missing_rank", missingRank},
      {"twice", twice},
      {"other_count", otherCount},
      {"early", early},
      {"in_progress", inProgress},
  };
}

}  // namespace

bool runMistake(const std::string& name, Rank& rank) {
  for (const Scenarios& some : {mismatches(), refusals(), others()}) {
    const auto found = some.find(name);
    if (found == some.end()) continue;
    found->second(rank);
    return true;
  }
  return false;
}

}  // namespace nccl_probe
