// A process of the probe: a rank with its GPU, two streams, and buffers.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>
#include <vector>

namespace nccl_probe {

constexpr int kCount = 12;  // elements of a buffer that calls use
constexpr int kRoom = 64;

// Ends the process with code 3 where it is not right.
void require(cudaError_t code);
void require(ncclResult_t code);
void require(bool right, const char* what);

struct Rank {
  int rank = 0, ranks = 0;
  std::vector<ncclUniqueId> ids;
  int to_next = -1, from_last = -1;  // pipes between the hosts, from rank to rank
  ncclComm_t communicator = nullptr;
  cudaStream_t stream{}, other{};
  cudaEvent_t event{};
  float *x = nullptr, *y = nullptr, *host = nullptr;

  // Not the communicator.
  void open();
  void close();
  void init();  // a blocking one, of the first id
  // x[i] = 10 * rank + i, on the stream.
  void fill();
  // Waits for the stream; the first elements of y.
  std::vector<float> take(int count, const float* from = nullptr);
  void order(cudaStream_t first, cudaStream_t second);
  void tellNext() const;
  void hearLast() const;
};

// Asks until it is no longer ncclInProgress, for some seconds.
ncclResult_t poll(ncclComm_t communicator);
// `code`, or, where it is ncclInProgress, what comes of it.
void settle(ncclResult_t code, ncclComm_t communicator);

// False: there is no such scenario.
bool runRight(const std::string& name, Rank& rank);
bool runMistake(const std::string& name, Rank& rank);
bool runFault(const std::string& name, Rank& rank);

}  // namespace nccl_probe
