// A little backend on the stand-in: two streams, a staging buffer, results back. `probe MISTAKE` makes one;
// `probe none` is right: exit code 0, and no report.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/kernels/base/cuda_launch.h"
#include "tests/standin/probe/probe_kernels.h"

namespace {

constexpr int kRows = 5, kSize = 70, kCount = kRows * kSize;

void require(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "probe: %s\n", cudaGetErrorString(code));
  std::exit(3);
}

float* onDevice(int count) {
  void* place = nullptr;
  require(cudaMalloc(&place, count * sizeof(float)));
  return static_cast<float*>(place);
}

float* onHost(int count) {
  void* place = nullptr;
  require(cudaMallocHost(&place, count * sizeof(float)));
  return static_cast<float*>(place);
}

struct Probe {
  std::string mistake;
  cudaStream_t compute{}, copy{};
  cudaEvent_t loaded{}, computed{}, began{}, ended{};
  float *x, *y, *sums, *staging, *back;

  bool isMistake(const char* name) const { return mistake == name; }

  void open() {
    require(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    require(cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking));
    require(cudaEventCreateWithFlags(&loaded, cudaEventDisableTiming));
    require(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming));
    require(cudaEventCreateWithFlags(&began, cudaEventDefault));
    require(cudaEventCreateWithFlags(&ended, cudaEventDefault));
    x = onDevice(kCount);
    y = onDevice(kCount);
    sums = onDevice(kRows);
    staging = onHost(kCount);
    back = onHost(kRows);
  }

  void run() {
    for (int i = 0; i < kCount; ++i) staging[i] = static_cast<float>(i % 7);
    require(cudaEventRecord(began, compute));
    require(cudaMemcpyAsync(x, staging, kCount * sizeof(float), cudaMemcpyHostToDevice, copy));
    if (isMistake("staging")) staging[0] = 1;  // while it is copied
    require(cudaEventRecord(loaded, copy));
    if (!isMistake("loaded")) require(cudaStreamWaitEvent(compute, loaded, 0));
    if (!isMistake("unwritten")) standin_probe::add(compute, x, x, y, kCount);
    standin_probe::sumRows(compute, y, sums, kRows, kSize, isMistake("barrier"));
    if (isMistake("half")) standin_probe::waitHalf(compute);
    if (isMistake("outside")) standin_probe::oneTooMany(compute, sums, kRows);
    if (isMistake("misaligned")) standin_probe::misaligned(compute, y);
    if (isMistake("threads")) standin_probe::tooManyThreads(compute, y);
    if (isMistake("default")) standin_probe::add(nullptr, x, x, y, kCount);
    require(cudaEventRecord(computed, compute));
    if (!isMistake("computed")) require(cudaStreamWaitEvent(copy, computed, 0));
    require(cudaMemcpyAsync(back, sums, kRows * sizeof(float), cudaMemcpyDeviceToHost, copy));
    require(cudaEventRecord(ended, copy));
    if (isMistake("early")) take(began, ended);
    if (!isMistake("host")) require(cudaStreamSynchronize(copy));
    if (!isMistake("host")) take(began, isMistake("untimed") ? computed : ended);
  }

  // The time between two events.
  static void take(cudaEvent_t from, cudaEvent_t to) {
    float milliseconds = -1;
    require(cudaEventElapsedTime(&milliseconds, from, to));
    if (!(milliseconds >= 0 && milliseconds < 60000)) std::exit(4);
  }

  int check() const {
    for (int row = 0; row < kRows; ++row) {
      float want = 0;
      for (int i = 0; i < kSize; ++i) want += 2 * static_cast<float>((row * kSize + i) % 7);
      if (back[row] != want) return 1;
    }
    return 0;
  }

  void close() {
    for (float* block : {x, y, sums}) require(cudaFree(block));
    if (isMistake("freed")) {
      standin_probe::add(compute, x, x, y, kCount);
      require(cudaStreamSynchronize(compute));
    }
    if (!isMistake("leak")) require(cudaFreeHost(staging));
    require(cudaFreeHost(back));
    if (isMistake("destroyed")) require(cudaEventRecord(began, compute));
    for (cudaEvent_t event : {loaded, computed, began, ended}) require(cudaEventDestroy(event));
    require(cudaStreamDestroy(compute));
    require(cudaStreamDestroy(copy));
  }
};

}  // namespace

void pipeshard::kernels::checkLaunch(const char*) { require(cudaGetLastError()); }

int main(int argc, char** argv) {
  Probe probe;
  probe.mistake = argc > 1 ? argv[1] : "none";
  probe.open();
  probe.run();
  const int code = probe.check();
  probe.close();
  return code;
}
