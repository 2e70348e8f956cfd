// The shared memory transport between processes, beside memcpy in one process. Arguments: bytes, and the
// number of ranks.
//
// The measured process is rank 0; the other ranks are forked and repeat what it does until it tells them to
// stop.
#include <benchmark/benchmark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "ir/base/error.h"
#include "transport/shared/shared_memory.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;

struct Side {
  std::unique_ptr<SharedMemoryCommunicator> communicator;
  std::span<std::byte> arena;
  std::vector<std::byte> heap;
  size_t bytes;
  Group everybody;

  std::span<std::byte> input() const { return arena.first(bytes); }
  std::span<std::byte> output() const { return arena.subspan(arena.size() / 2, bytes); }
};

Side openSide(SharedSegments segments, int rank, int ranks, size_t bytes) {
  Side side;
  side.communicator = SharedMemoryCommunicator::open(std::move(segments), RankId(rank), 20s);
  side.arena = side.communicator->createArena(2 * (bytes + 4096));
  side.heap.assign(bytes, std::byte{1});
  side.bytes = bytes;
  side.everybody = idsBelow<RankId>(ranks);
  return side;
}

// One byte before each repetition: go on, or stop.
void announce(Side& side, int ranks, bool go_on) {
  std::byte word{go_on};
  for (int peer = 1; peer < ranks; ++peer) side.communicator->send(RankId(peer), {&word, 1})->wait();
}

using Work = std::function<void(Side& side, int rank)>;

// Batches make the announcement's cost small beside the work's.
void runRanks(benchmark::State& state, const Work& work) {
  const size_t bytes = state.range(0);
  const int ranks = state.range(1);
  const int batch = bytes >= (size_t{16} << 20) ? 1 : bytes >= (size_t{1} << 20) ? 10 : 100;
  SharedSegments segments = SharedSegments::create(ranks);
  const std::string text = segments.describe();
  std::vector<pid_t> children;
  for (int rank = 1; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      Side side = openSide(SharedSegments::inherit(text), rank, ranks, bytes);
      for (std::byte word{1};;) {
        side.communicator->receive(RankId(0), {&word, 1});
        if (word == std::byte{0}) ::_exit(0);
        for (int i = 0; i < batch; ++i) work(side, rank);
      }
    }
    children.push_back(child);
  }
  Side side = openSide(std::move(segments), 0, ranks, bytes);
  const auto measure = [&] {
    announce(side, ranks, true);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < batch; ++i) work(side, 0);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  measure();  // page tables
  while (state.KeepRunningBatch(batch)) state.SetIterationTime(measure());
  announce(side, ranks, false);
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// One way: the sender goes on when the receiver has the data.
void sendArena(benchmark::State& state) {
  runRanks(state, [](Side& side, int rank) {
    if (rank == 0) {
      side.communicator->send(RankId(1), side.input())->wait();
    } else {
      side.communicator->receive(RankId(0), side.output());
    }
  });
}

void sendHeap(benchmark::State& state) {
  runRanks(state, [](Side& side, int rank) {
    if (rank == 0) {
      side.communicator->send(RankId(1), side.heap)->wait();
    } else {
      side.communicator->receive(RankId(0), side.heap);
    }
  });
}

void allReduceInPlace(benchmark::State& state) {
  runRanks(state, [](Side& side, int) {
    side.communicator->allReduce(side.everybody, DataType::kFloat32, Reduction::kSum, side.input().data(),
                                 side.input().data(), side.bytes / 4);
  });
}

void allReduceOutOfPlace(benchmark::State& state) {
  runRanks(state, [](Side& side, int) {
    side.communicator->allReduce(side.everybody, DataType::kFloat32, Reduction::kSum, side.input().data(),
                                 side.output().data(), side.bytes / 4);
  });
}

void allReduceHeap(benchmark::State& state) {
  runRanks(state, [](Side& side, int) {
    side.communicator->allReduce(side.everybody, DataType::kFloat32, Reduction::kSum, side.heap.data(),
                                 side.heap.data(), side.bytes / 4);
  });
}

void barrier(benchmark::State& state) {
  runRanks(state, [](Side& side, int) { side.communicator->barrier(side.everybody); });
}

void copyInOneProcess(benchmark::State& state) {
  const size_t bytes = state.range(0);
  std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes, std::byte{2});
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::DoNotOptimize(to.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

const std::vector<int64_t> kBytes = {4 << 10, 1 << 20, 64 << 20};

BENCHMARK(copyInOneProcess)->ArgsProduct({kBytes});
BENCHMARK(sendArena)->ArgsProduct({kBytes, {2}})->UseManualTime();
BENCHMARK(sendHeap)->ArgsProduct({kBytes, {2}})->UseManualTime();
BENCHMARK(allReduceInPlace)->ArgsProduct({kBytes, {2, 4, 8}})->UseManualTime();
BENCHMARK(allReduceOutOfPlace)->ArgsProduct({kBytes, {2}})->UseManualTime();
BENCHMARK(allReduceHeap)->ArgsProduct({kBytes, {2, 4}})->UseManualTime();
BENCHMARK(barrier)->ArgsProduct({{0}, {2, 4, 8}})->UseManualTime();

}  // namespace
}  // namespace pipeshard
