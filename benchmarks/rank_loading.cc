// What a worker takes for its rank of a plan directory, beside its weights and its arena: reading ranks.json,
// its kind and its subgraphs, making kernels, planning memory, the digest of what it has loaded.
//
//   rank_loading gpt2.plan 1023
//   {"seconds":0.12,"processor_seconds":0.11,"resident_bytes":31457280,"peak_bytes":33554432}
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "runtime/execute/rank_image.h"
#include "runtime/execute/step_runner.h"
#include "runtime/execute/worker_threads.h"
#include "runtime/identity/plan_programs.h"

namespace pipeshard {
namespace {

// A line of /proc/self/status, in bytes.
int64_t memoryOf(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

int run(const std::string& directory, int rank) {
  const auto begin = std::chrono::steady_clock::now();
  const WorkerThreads threads(1);
  std::optional<ProgramFolder> programs(directory);
  const StepRunner runner(*programs, RankId(rank), {});
  programsDigest(*programs, RankId(rank));
  programs.reset();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  fmt::print("{{\"seconds\":{:.3f},\"processor_seconds\":{:.3f},\"resident_bytes\":{},\"peak_bytes\":{}}}\n",
             seconds.count(), static_cast<double>(std::clock()) / CLOCKS_PER_SEC, memoryOf("VmRSS"),
             memoryOf("VmHWM"));
  return 0;
}

}  // namespace
}  // namespace pipeshard

int main(int count, char** arguments) {
  if (count != 3) {
    fmt::print(stderr, "usage: rank_loading PLAN RANK\n");
    return 64;
  }
  try {
    return pipeshard::run(arguments[1], std::atoi(arguments[2]));
  } catch (const pipeshard::Error& error) {
    fmt::print(stderr, "rank_loading: {}\n", error.message());
    return static_cast<int>(error.code());
  }
}
