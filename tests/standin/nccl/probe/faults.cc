// Scenarios of what goes wrong without the program's doing: it finds out, and ends well.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <map>
#include <string_view>
#include <thread>

#include "tests/standin/nccl/probe/rank.h"

namespace nccl_probe {
namespace {

// Until the stream is done or the communicator has failed, for some seconds.
ncclResult_t watch(Rank& rank) {
  ncclResult_t state = ncclSuccess;
  for (int i = 0; i < 2500 && state == ncclSuccess; ++i) {
    require(cudaStreamQuery(rank.stream) == cudaErrorNotReady, "what can never be done is done");
    require(ncclCommGetAsyncError(rank.communicator, &state));
    ::usleep(2000);
  }
  return state;
}

void sum(Rank& rank) {
  require(ncclAllReduce(rank.x, rank.y, kCount, ncclFloat, ncclSum, rank.communicator, rank.stream));
}

// Rank 1 is killed, and the others have a collective with it.
void vanished(Rank& rank) {
  rank.init();
  rank.fill();
  sum(rank);
  require(cudaStreamSynchronize(rank.stream));
  if (rank.rank == 1) ::raise(SIGKILL);
  sum(rank);
  require(watch(rank) == ncclRemoteError, "a peer that has vanished");
  require(
      std::string_view(ncclGetLastError(rank.communicator)).find("has vanished") != std::string_view::npos,
      "its text");
  require(ncclCommAbort(rank.communicator));
  require(cudaStreamSynchronize(rank.stream));
}

// STANDIN_NCCL_ERROR: of rank 0, its second launch. The others are told when it aborts.
void injected(Rank& rank) {
  rank.init();
  rank.fill();
  sum(rank);
  require(cudaStreamSynchronize(rank.stream));
  sum(rank);
  require(watch(rank) == (rank.rank == 0 ? ncclSystemError : ncclRemoteError), "an error that was asked for");
  require(ncclAllReduce(rank.x, rank.y, 1, ncclFloat, ncclSum, rank.communicator, rank.stream) != ncclSuccess,
          "a call after it");
  require(ncclCommAbort(rank.communicator));
  require(cudaStreamSynchronize(rank.stream));
}

// Nobody else comes, and the host is inside a synchronisation: another thread aborts.
void aborted(Rank& rank) {
  rank.init();
  rank.fill();
  if (rank.rank == 0) {
    sum(rank);
    std::thread watchdog([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      require(ncclCommAbort(rank.communicator));
    });
    require(cudaStreamSynchronize(rank.stream));
    watchdog.join();
    rank.tellNext();
  } else {
    rank.hearLast();
    if (rank.rank != rank.ranks - 1) rank.tellNext();
    require(cudaStreamSynchronize(rank.stream));
    require(ncclCommAbort(rank.communicator));
  }
}

// An init that never ends, and is given up.
void lonely(Rank& rank) {
  if (rank.rank != 0) {
    rank.hearLast();
    if (rank.rank != rank.ranks - 1) rank.tellNext();
    return;
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  require(ncclCommInitRankConfig(&rank.communicator, rank.ranks, rank.ids[0], rank.rank, &config) ==
              ncclInProgress,
          "init");
  ::usleep(300000);
  ncclResult_t state = ncclSuccess;
  require(ncclCommGetAsyncError(rank.communicator, &state));
  require(state == ncclInProgress, "an init that cannot end");
  require(ncclCommAbort(rank.communicator));
  rank.tellNext();
}

void oneGpu(Rank& rank) {
  const ncclResult_t code = ncclCommInitRank(&rank.communicator, rank.ranks, rank.ids[0], rank.rank);
  require(code == ncclInvalidUsage, "ranks that share a GPU");
  require(std::string_view(ncclGetLastError(nullptr)).find("Duplicate GPU") != std::string_view::npos,
          "its text");
}

}  // namespace

bool runFault(const std::string& name, Rank& rank) {
  static const std::map<std::string, std::function<void(Rank&)>> all = {
      {"vanished", vanished}, {"injected", injected}, {"aborted", aborted},
      {"lonely", lonely},     {"one_gpu", oneGpu},
  };
  const auto found = all.find(name);
  if (found == all.end()) return false;
  found->second(rank);
  return true;
}

}  // namespace nccl_probe
