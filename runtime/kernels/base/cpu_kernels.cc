#include "runtime/kernels/base/cpu_kernels.h"

#include "runtime/kernels/base/families.h"

namespace pipeshard {

const KernelRegistry& cpuKernels() {
  static const KernelRegistry registry = [] {
    KernelRegistry all;
    kernels::addAllKernels(all);
    return all;
  }();
  return registry;
}

}  // namespace pipeshard
