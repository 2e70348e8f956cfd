#include "tests/standin/nccl/probe/rank.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace nccl_probe {
namespace {

float* onDevice() {
  void* place = nullptr;
  require(cudaMalloc(&place, kRoom * sizeof(float)));
  return static_cast<float*>(place);
}

}  // namespace

void require(cudaError_t code) { require(code == cudaSuccess, cudaGetErrorString(code)); }
void require(ncclResult_t code) { require(code == ncclSuccess, ncclGetErrorString(code)); }
void require(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "probe: not right: %s\n", what);
  std::exit(3);
}

void Rank::open() {
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  require(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  x = onDevice();
  y = onDevice();
  void* place = nullptr;
  require(cudaMallocHost(&place, kRoom * sizeof(float)));
  host = static_cast<float*>(place);
}

void Rank::close() {
  for (float* block : {x, y}) require(cudaFree(block));
  require(cudaFreeHost(host));
  require(cudaEventDestroy(event));
  require(cudaStreamDestroy(stream));
  require(cudaStreamDestroy(other));
}

void Rank::init() { require(ncclCommInitRank(&communicator, ranks, ids[0], rank)); }

void Rank::fill() {
  for (int i = 0; i < kCount; ++i) host[i] = static_cast<float>(10 * rank + i);
  require(cudaMemcpyAsync(x, host, kCount * sizeof(float), cudaMemcpyHostToDevice, stream));
}

std::vector<float> Rank::take(int count, const float* from) {
  require(cudaMemcpyAsync(host, from == nullptr ? y : from, count * sizeof(float), cudaMemcpyDeviceToHost,
                          stream));
  require(cudaStreamSynchronize(stream));
  return {host, host + count};
}

void Rank::order(cudaStream_t first, cudaStream_t second) {
  require(cudaEventRecord(event, first));
  require(cudaStreamWaitEvent(second, event, 0));
}

void Rank::tellNext() const { require(::write(to_next, "x", 1) == 1, "a pipe"); }
void Rank::hearLast() const {
  char heard = 0;
  require(::read(from_last, &heard, 1) == 1, "a pipe");
}

ncclResult_t poll(ncclComm_t communicator) {
  ncclResult_t state = ncclInProgress;
  for (int i = 0; i < 5000 && state == ncclInProgress; ++i) {
    require(ncclCommGetAsyncError(communicator, &state));
    if (state == ncclInProgress) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return state;
}

void settle(ncclResult_t code, ncclComm_t communicator) {
  require(code == ncclInProgress ? poll(communicator) : code);
}

}  // namespace nccl_probe
