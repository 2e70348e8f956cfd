// What pipeshard_cuda.so shows: runtime/device/cuda_loader.cc calls it.
#include <memory>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda_loader.h"

extern "C" __attribute__((visibility("default"))) void pipeshard_open_cuda(pipeshard::OpenedCuda* opened) {
  opened->version = pipeshard::kCudaModuleVersion;
  if (opened->asked == pipeshard::kCudaModuleVersion)
    opened->device = std::make_unique<pipeshard::CudaDevice>(opened->number, opened->shared);
}
