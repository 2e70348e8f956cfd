// What pipeshard_cuda.so shows: runtime/device/cuda_loader.cc calls it.
#include <memory>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda_loader.h"
#include "runtime/identity/source_version.h"

extern "C" __attribute__((visibility("default"))) void pipeshard_open_cuda(pipeshard::OpenedCuda* opened) {
  opened->version = pipeshard::kCudaModuleVersion;
  opened->source_version = pipeshard::kSourceVersion;
  opened->source_commit = pipeshard::kSourceCommit;
  if (opened->asked == pipeshard::kCudaModuleVersion)
    opened->device = std::make_unique<pipeshard::CudaDevice>(opened->number, opened->shared);
}
