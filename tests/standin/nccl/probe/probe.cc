// `nccl_probe RANKS SCENARIO`: a process for each rank, on a GPU of its own. Code 99: one of them has
// reported; else the first code that is not 0; killed ones (by their own wish) do not count.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/standin/nccl/probe/rank.h"

namespace {

using nccl_probe::Rank;

void runRank(Rank rank, const std::string& scenario) {
  if (scenario == "visible_devices") {
    ::setenv("CUDA_VISIBLE_DEVICES", std::to_string(rank.rank).c_str(), 1);
    nccl_probe::require(cudaSetDevice(0));
  } else {
    nccl_probe::require(cudaSetDevice(scenario.starts_with("one_gpu") ? 0 : rank.rank));
  }
  rank.open();
  nccl_probe::require(nccl_probe::runRight(scenario, rank) || nccl_probe::runMistake(scenario, rank) ||
                          nccl_probe::runFault(scenario, rank),
                      "there is no such scenario");
  rank.close();
  std::exit(0);
}

std::vector<Rank> makeRanks(int count) {
  std::vector<Rank> ranks(count);
  std::vector<ncclUniqueId> ids(2);
  for (ncclUniqueId& id : ids) nccl_probe::require(ncclGetUniqueId(&id));
  for (int i = 0; i < count; ++i) {
    ranks[i].rank = i;
    ranks[i].ranks = count;
    ranks[i].ids = ids;
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    ranks[i].to_next = ends[1];
    ranks[(i + 1) % count].from_last = ends[0];
  }
  return ranks;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::vector<pid_t> children;
  for (const Rank& rank : makeRanks(std::atoi(argv[1]))) {
    const pid_t child = ::fork();
    if (child == 0) runRank(rank, argv[2]);
    children.push_back(child);
  }
  int code = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    const int one = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (code == 0 || one == 99) code = one;
  }
  return code;
}
