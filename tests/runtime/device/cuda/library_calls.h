// What kernels of the CUDA module have NVIDIA's libraries do (cuBLASLt, cuDNN), recorded with inputs and
// outputs on a GPU, and replayed on the stand-ins: so that these compute what the libraries do.
//
//   collect: every distinct call of a plan: operator, attributes (epilogue), types, and which sizes are 1
//            (shape class); sizes that do not matter become small
//   record:  on a GPU, with numbers drawn by the call's name; one safetensors file, whose metadata has them
//   replay:  on whatever device is there; within 1e-5 (float32) and 1e-12 (float64) of the norm
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/execute/rank_image.h"
#include "tests/runtime/kernels/kernel_call.h"

namespace pipeshard::testing {

inline constexpr int64_t kMostRecordedBytes = 1 << 20;

struct LibraryCall {
  KernelCall call;
  bool adds = false;  // output 0 is added to what is there: the input behind the call's own
};
// By what tells them apart.
using LibraryCalls = std::map<std::string, LibraryCall>;

void addCalls(const Graph& graph, LibraryCalls& calls);
void addCalls(ProgramFolder& folder, LibraryCalls& calls);  // of all ranks

// Error(kInternal): more than kMostRecordedBytes.
void recordCalls(const LibraryCalls& calls, const std::map<std::string, std::string>& about,
                 const std::string& path);

struct Replayed {
  size_t calls = 0;
  std::vector<std::string> wrong;            // call, output, error, bound
  std::map<std::string, std::string> about;  // date, device
};
Replayed replayCalls(const std::string& path);

}  // namespace pipeshard::testing
