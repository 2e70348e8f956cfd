// What a worker takes for its rank of a plan directory, beside its weights and its arena: reading ranks.json,
// its kind and its subgraphs, making kernels, planning memory, the digest of what it has loaded, and
// everything bound to its place in an arena of which no byte is touched.
//
//   rank_loading gpt2.plan 1023
//   {"seconds":0.12,"processor_seconds":0.11,"resident_bytes":31457280,"peak_bytes":33554432}
#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <fmt/format.h>

#include "ir/base/error.h"
#include "runtime/data/data.h"
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

// One that no step is run with.
class Unused : public Communicator {
 public:
  explicit Unused(const Program& program) : rank_(program.rank), size_(program.world_size) {}
  RankId rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<SendHandle> send(RankId, std::span<const std::byte>) override { return nullptr; }
  void receive(RankId, std::span<std::byte>) override {}
  void allReduce(const Group&, DataType, Reduction, const void*, void*, size_t) override {}
  void allGather(const Group&, DataType, const void*, void*, size_t) override {}
  void reduceScatter(const Group&, DataType, Reduction, const void*, void*, size_t) override {}
  void allToAll(const Group&, DataType, const void*, void*, size_t) override {}
  void broadcast(const Group&, DataType, int, void*, size_t) override {}
  void barrier(const Group&) override {}

 private:
  RankId rank_;
  int size_;
};

std::span<std::byte> untouched(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail(ErrorCode::kOutOfMemory, "an arena of {} bytes", bytes);
  return {static_cast<std::byte*>(memory), bytes};
}

int run(const std::string& directory, int rank) {
  const auto begin = std::chrono::steady_clock::now();
  const WorkerThreads threads(1);
  std::optional<ProgramFolder> programs(directory);
  StepRunner runner(*programs, RankId(rank), {});
  programsDigest(*programs, RankId(rank));
  programs.reset();
  Executor& executor = runner.main();
  Unused peers(executor.program()), background(executor.program());
  const std::unique_ptr<DataSource> data = makeSyntheticData(executor.program().inputs, 0);
  // Beside itself: nothing is read.
  executor.attachBeside(executor, untouched(runner.arenaBytes()), &peers, data.get(), &background);
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
