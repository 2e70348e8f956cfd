// All-reduce of 64 MiB (or argument 1, in MiB) of float32 over two processes of this machine: shared memory,
// Gloo behind pipeshard's communicator, and Gloo's own ring, in turn in each round; prints the medians and
// their ratios.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/two_processes.h"
#include "ir/base/error.h"
#include "transport/shared/shared_memory.h"
#include "transport/shared/shared_segments.h"

namespace pipeshard {
namespace {

using namespace std::chrono_literals;

constexpr int kRounds = 9;
const Group kBoth = idsAt<RankId>({0, 1});

struct Contender {
  const char* name;
  std::function<void(float*)> all_reduce;  // in place
  float* data;
  std::vector<double> milliseconds;
};

std::shared_ptr<::gloo::rendezvous::Context> ownContext(int rank, const std::string& folder) {
  ::gloo::rendezvous::FileStore store(folder);
  auto device = ::gloo::transport::tcp::CreateDevice(::gloo::transport::tcp::attr("127.0.0.1"));
  auto context = std::make_shared<::gloo::rendezvous::Context>(rank, 2);
  context->connectFullMesh(store, device);
  return context;
}

void ringAllReduce(const std::shared_ptr<::gloo::Context>& context, float* data, size_t count) {
  ::gloo::AllreduceOptions options(context);
  options.setAlgorithm(::gloo::AllreduceOptions::Algorithm::RING);
  options.setOutput(data, count);
  options.setReduceFunction(
      [](void* c, const void* a, const void* b, size_t n) { ::gloo::sum<float>(c, a, b, n); });
  ::gloo::allreduce(options);
}

// One warm-up, then rounds in which each contender has its turn; every result is checked.
void race(std::vector<Contender>& contenders, size_t count, Communicator& others, int rank) {
  for (int round = 0; round <= kRounds; ++round) {
    for (Contender& contender : contenders) {
      std::fill(contender.data, contender.data + count, static_cast<float>(rank + round));
      others.barrier(kBoth);
      const auto start = std::chrono::steady_clock::now();
      contender.all_reduce(contender.data);
      const double took =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      if (round > 0) contender.milliseconds.push_back(took);
      const auto expected = static_cast<float>(2 * round + 1);
      const auto wrong = std::count_if(contender.data, contender.data + count,
                                       [&](float value) { return value != expected; });
      if (wrong > 0) fail(ErrorCode::kInternal, "{}: {} wrong elements", contender.name, wrong);
    }
  }
}

void runRank(int rank, const std::string& segments, const std::string& folder, size_t bytes) {
  const size_t count = bytes / sizeof(float);
  const auto shared = SharedMemoryCommunicator::open(SharedSegments::inherit(segments), RankId(rank), 60s);
  auto* arena = reinterpret_cast<float*>(shared->createArena(bytes + 4096).data());
  FileStore store(folder + "/ours");
  const auto gloo = openGloo({RankId(rank), 2, "127.0.0.1", 60s}, store);
  const std::shared_ptr<::gloo::Context> own = ownContext(rank, folder + "/own");
  std::vector<float> heap(count);
  const auto sum = [&](Communicator& communicator, float* data) {
    communicator.allReduce(kBoth, DataType::kFloat32, Reduction::kSum, data, data, count);
  };
  std::vector<Contender> contenders;
  contenders.push_back({"shared memory", [&](float* data) { sum(*shared, data); }, arena, {}});
  contenders.push_back(
      {"Gloo, pipeshard's order of sums", [&](float* data) { sum(*gloo, data); }, heap.data(), {}});
  contenders.push_back(
      {"Gloo, its own ring", [&](float* data) { ringAllReduce(own, data, count); }, heap.data(), {}});
  race(contenders, count, *shared, rank);
  if (rank != 0) return;
  const double base = median(contenders[0].milliseconds);
  fmt::print("all-reduce of {} MiB float32, 2 processes, median of {} interleaved rounds\n", bytes >> 20,
             kRounds);
  for (const Contender& contender : contenders) {
    const double took = median(contender.milliseconds);
    fmt::print("{:<34}{:>9.1f} ms   {:>5.2f} times shared memory\n", contender.name, took, took / base);
  }
}

int runBoth(size_t bytes) {
  std::string folder = (std::filesystem::temp_directory_path() / "allreduce.XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) fail(ErrorCode::kDiskFull, "cannot make a folder in {}", folder);
  std::filesystem::create_directory(folder + "/ours");
  std::filesystem::create_directory(folder + "/own");
  const SharedSegments segments = SharedSegments::create(2);
  const auto run = [&](int rank) {
    try {
      runRank(rank, segments.describe(), folder, bytes);
      return 0;
    } catch (const std::exception& error) {
      fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      return 1;
    }
  };
  const pid_t child = ::fork();
  if (child == 0) ::_exit(run(1));
  const int own = run(0);
  int status = 1;
  ::waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return own != 0 || status != 0 ? 1 : 0;
}

}  // namespace
}  // namespace pipeshard

int main(int count, char** arguments) {
  const size_t mebibytes = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 64;
  return pipeshard::runBoth(std::max<size_t>(1, mebibytes) << 20);
}
