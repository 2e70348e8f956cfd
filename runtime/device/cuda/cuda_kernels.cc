#include "runtime/device/cuda/cuda_kernels.h"

#include "runtime/kernels/base/families.h"

namespace pipeshard {

const KernelRegistry& cudaKernels() {
  static const KernelRegistry registry = [] {
    KernelRegistry all(KernelRegistry::OtherTypes::kRefused);
    kernels::addAllKernels(all);
    return all;
  }();
  return registry;
}

}  // namespace pipeshard
