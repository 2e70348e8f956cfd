// Scenarios that are right: code 0, and nothing is said.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "tests/standin/nccl/probe/rank.h"

namespace nccl_probe {
namespace {

void requireSame(const std::vector<float>& got, const std::function<float(int)>& want, const char* what) {
  for (size_t i = 0; i < got.size(); ++i) require(got[i] == want(static_cast<int>(i)), what);
}

float sumOver(const Rank& rank, int i) {
  float sum = 0;
  for (int r = 0; r < rank.ranks; ++r) sum += static_cast<float>(10 * r + i);
  return sum;
}

void reduces(Rank& rank, ncclRedOp_t op) {
  require(ncclAllReduce(rank.x, rank.y, kCount, ncclFloat, op, rank.communicator, rank.stream));
  requireSame(
      rank.take(kCount),
      [&](int i) {
        float value = static_cast<float>(i);
        for (int r = 1; r < rank.ranks; ++r) {
          const float one = static_cast<float>(10 * r + i);
          value = op == ncclProd  ? value * one
                  : op == ncclMax ? std::max(value, one)
                  : op == ncclMin ? std::min(value, one)
                                  : value + one;
        }
        return op == ncclAvg ? value / static_cast<float>(rank.ranks) : value;
      },
      "ncclAllReduce");
}

// In the memory of x.
template <typename T>
std::vector<T> sumOf(Rank& rank, ncclDataType_t type, std::vector<T> values) {
  const size_t bytes = values.size() * sizeof(T);
  std::memcpy(rank.host, values.data(), bytes);
  require(cudaMemcpyAsync(rank.x, rank.host, bytes, cudaMemcpyHostToDevice, rank.stream));
  require(ncclAllReduce(rank.x, rank.x, values.size(), type, ncclSum, rank.communicator, rank.stream));
  require(cudaMemcpyAsync(rank.host, rank.x, bytes, cudaMemcpyDeviceToHost, rank.stream));
  require(cudaStreamSynchronize(rank.stream));
  std::memcpy(values.data(), rank.host, bytes);
  return values;
}

// Each rank gives its number + 1.
template <typename T>
void sumsAs(Rank& rank, ncclDataType_t type) {
  const std::vector<T> values(4, static_cast<T>(rank.rank + 1));
  for (const T value : sumOf(rank, type, values))
    require(value == static_cast<T>(rank.ranks * (rank.ranks + 1) / 2), "a type");
}

// Numbers of 16 bits, as memory has them. `large` + 1 is half way between two, and becomes `large` again; the
// sum of two `largest` is infinite.
struct Narrow {
  ncclDataType_t type;
  uint16_t one, large, largest, infinity;
};

void roundsAtEveryRank(Rank& rank, const Narrow& narrow) {
  const std::vector<uint16_t> sums =
      sumOf<uint16_t>(rank, narrow.type, {rank.rank == 0 ? narrow.large : narrow.one, narrow.largest});
  require(sums[0] == narrow.large, "a sum that is rounded at every rank");
  require(sums[1] == narrow.infinity, "a sum that is too large");
}

void collectives(Rank& rank) {
  rank.init();
  int count = 0, number = -1, device = -1, version = 0;
  require(ncclCommCount(rank.communicator, &count));
  require(ncclCommUserRank(rank.communicator, &number));
  require(ncclCommCuDevice(rank.communicator, &device));
  require(ncclGetVersion(&version));
  require(count == rank.ranks && number == rank.rank && version == NCCL_VERSION_CODE,
          "what a communicator is");
  rank.fill();
  for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) reduces(rank, op);
  const int part = kCount / rank.ranks;
  require(ncclReduceScatter(rank.x, rank.y, part, ncclFloat, ncclSum, rank.communicator, rank.stream));
  requireSame(
      rank.take(part), [&](int i) { return sumOver(rank, part * rank.rank + i); }, "ncclReduceScatter");
  require(ncclAllGather(rank.x, rank.y, 4, ncclFloat, rank.communicator, rank.stream));
  requireSame(
      rank.take(4 * rank.ranks), [](int i) { return static_cast<float>(i / 4 * 10 + i % 4); },
      "ncclAllGather");
  require(ncclBroadcast(rank.x, rank.y, 4, ncclFloat, 1, rank.communicator, rank.stream));
  requireSame(
      rank.take(4), [](int i) { return static_cast<float>(10 + i); }, "ncclBroadcast");
  require(ncclReduce(rank.x, rank.y, 4, ncclFloat, ncclSum, 0, rank.communicator, rank.stream));
  if (rank.rank == 0)
    requireSame(
        rank.take(4), [&](int i) { return sumOver(rank, i); }, "ncclReduce");
  require(ncclAllReduce(rank.x, rank.x, 0, ncclFloat, ncclSum, rank.communicator, rank.stream));  // nothing
  sumsAs<int8_t>(rank, ncclInt8);
  sumsAs<uint8_t>(rank, ncclUint8);
  sumsAs<int32_t>(rank, ncclInt32);
  sumsAs<uint32_t>(rank, ncclUint32);
  sumsAs<int64_t>(rank, ncclInt64);
  sumsAs<uint64_t>(rank, ncclUint64);
  sumsAs<double>(rank, ncclDouble);
  roundsAtEveryRank(rank, {ncclHalf, 0x3c00, 0x6800, 0x7bff, 0x7c00});
  roundsAtEveryRank(rank, {ncclBfloat16, 0x3f80, 0x4380, 0x7f7f, 0x7f80});
  require(ncclCommDestroy(rank.communicator));
}

// Everybody to the next one, in one group: no order of sends and receives is asked for.
void ring(Rank& rank) {
  rank.init();
  rank.fill();
  const int next = (rank.rank + 1) % rank.ranks, last = (rank.rank + rank.ranks - 1) % rank.ranks;
  for (int round = 0; round < 20; ++round) {
    require(ncclGroupStart());
    require(ncclSend(rank.x, kCount, ncclFloat, next, rank.communicator, rank.stream));
    require(ncclRecv(rank.y, kCount, ncclFloat, last, rank.communicator, rank.stream));
    require(ncclGroupEnd());
  }
  requireSame(
      rank.take(kCount), [&](int i) { return static_cast<float>(10 * last + i); }, "a ring");
  require(ncclCommFinalize(rank.communicator));
  require(ncclCommDestroy(rank.communicator));
}

// There and back between 0 and 1, on two streams of two communicators, one for each way.
void pairs(Rank& rank) {
  rank.init();
  ncclComm_t back = nullptr;
  require(ncclCommInitRank(&back, rank.ranks, rank.ids[1], rank.rank));
  rank.fill();
  for (int round = 0; round < 10; ++round) {
    if (rank.rank == 0) {
      require(ncclSend(rank.x, kCount, ncclFloat, 1, rank.communicator, rank.stream));
      require(ncclRecv(rank.y, kCount, ncclFloat, 1, back, rank.other));
      rank.order(rank.other, rank.stream);
      requireSame(
          rank.take(kCount), [](int i) { return static_cast<float>(i); }, "back");
    } else {
      require(ncclRecv(rank.y, kCount, ncclFloat, 0, rank.communicator, rank.stream));
      rank.order(rank.stream, rank.other);
      require(ncclSend(rank.y, kCount, ncclFloat, 0, back, rank.other));
      rank.order(rank.other, rank.stream);
    }
  }
  require(ncclCommDestroy(rank.communicator));
  require(ncclCommDestroy(back));
}

// The host of 0 waits for the host of 1, which waits for what a stream of 0 has been given.
void hostsWait(Rank& rank) {
  rank.init();
  rank.fill();
  if (rank.rank == 0) {
    require(ncclSend(rank.x, kCount, ncclFloat, 1, rank.communicator, rank.stream));
    rank.hearLast();
  } else {
    require(ncclRecv(rank.y, kCount, ncclFloat, 0, rank.communicator, rank.stream));
    requireSame(
        rank.take(kCount), [](int i) { return static_cast<float>(i); }, "what was sent");
    rank.tellNext();
  }
  require(cudaStreamSynchronize(rank.stream));
  require(ncclCommDestroy(rank.communicator));
}

void nonBlocking(Rank& rank) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  require(ncclCommInitRankConfig(&rank.communicator, rank.ranks, rank.ids[0], rank.rank, &config) ==
              ncclInProgress,
          "init");
  require(poll(rank.communicator));
  rank.fill();
  for (int round = 0; round < 3; ++round)
    settle(ncclAllReduce(rank.x, rank.y, kCount, ncclFloat, ncclSum, rank.communicator, rank.stream),
           rank.communicator);
  while (true) {
    const cudaError_t done = cudaStreamQuery(rank.stream);
    if (done == cudaSuccess) break;
    require(done == cudaErrorNotReady, "cudaStreamQuery");
  }
  requireSame(
      rank.take(kCount), [&](int i) { return sumOver(rank, i); }, "ncclAllReduce");
  settle(ncclCommFinalize(rank.communicator), rank.communicator);
  require(ncclCommDestroy(rank.communicator));
}

// Even and odd ranks; the last one is in none.
void splits(Rank& rank, bool blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  const ncclResult_t begun =
      ncclCommInitRankConfig(&rank.communicator, rank.ranks, rank.ids[0], rank.rank, &config);
  settle(begun, rank.communicator);
  const bool none = rank.rank == rank.ranks - 1;
  ncclComm_t part = nullptr;
  const int color = none ? NCCL_SPLIT_NOCOLOR : rank.rank % 2;
  settle(ncclCommSplit(rank.communicator, color, -rank.rank, &part, nullptr), rank.communicator);
  require((part == nullptr) == none, "who is in a part");
  rank.fill();
  if (!none) {
    settle(ncclAllReduce(rank.x, rank.y, kCount, ncclFloat, ncclSum, part, rank.stream), part);
    const float want = rank.rank % 2 == 0 ? 20 : 10;  // 0 and 2, or 1 alone
    require(rank.take(1)[0] == want, "the sum of a part");
    int number = -1;
    require(ncclCommUserRank(part, &number));
    require(number == (rank.rank == 0 ? 1 : 0), "the order by key");
    if (!blocking) settle(ncclCommFinalize(part), part);
    require(ncclCommDestroy(part));
  }
  if (!blocking) settle(ncclCommFinalize(rank.communicator), rank.communicator);
  require(ncclCommDestroy(rank.communicator));
}

// Two communicators in a group: in no order. Then their kernels, in two orders on two streams.
void twoOrders(Rank& rank) {
  ncclComm_t made[2];
  const int first = rank.rank % 2;
  require(ncclGroupStart());
  for (const int i : {first, 1 - first})
    require(ncclCommInitRank(&made[i], rank.ranks, rank.ids[i], rank.rank));
  require(ncclGroupEnd());
  rank.fill();
  rank.order(rank.stream, rank.other);
  const cudaStream_t streams[2] = {rank.stream, rank.other};
  for (const int i : {first, 1 - first})
    require(ncclAllReduce(rank.x, i == 0 ? rank.y : rank.y + kCount, kCount, ncclFloat, ncclSum, made[i],
                          streams[i]));
  rank.order(rank.other, rank.stream);
  requireSame(
      rank.take(kCount, rank.y + kCount), [&](int i) { return sumOver(rank, i); }, "two streams");
  for (const ncclComm_t one : made) require(ncclCommDestroy(one));
}

// A group on two streams: both wait for it.
void groupOfStreams(Rank& rank) {
  rank.init();
  rank.fill();
  require(cudaMemsetAsync(rank.y, 0, kCount * sizeof(float), rank.other));
  require(ncclGroupStart());
  require(ncclSend(rank.x, kCount, ncclFloat, 1 - rank.rank, rank.communicator, rank.stream));
  require(ncclRecv(rank.y, kCount, ncclFloat, 1 - rank.rank, rank.communicator, rank.other));
  require(ncclGroupEnd());
  requireSame(
      rank.take(kCount), [&](int i) { return static_cast<float>(10 * (1 - rank.rank) + i); }, "a group");
  require(ncclCommDestroy(rank.communicator));
}

}  // namespace

bool runRight(const std::string& name, Rank& rank) {
  static const std::map<std::string, std::function<void(Rank&)>> all = {
      {"collectives", collectives},
      {"visible_devices", collectives},
      {"one_gpu_allowed", ring},
      {"ring", ring},
      {"pairs", pairs},
      {"hosts_wait", hostsWait},
      {"non_blocking", nonBlocking},
      {"split", [](Rank& one) { splits(one, true); }},
      {"split_non_blocking", [](Rank& one) { splits(one, false); }},
      {"two_orders", twoOrders},
      {"group_of_streams", groupOfStreams},
  };
  const auto found = all.find(name);
  if (found == all.end()) return false;
  found->second(rank);
  return true;
}

}  // namespace nccl_probe
