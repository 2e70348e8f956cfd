#include "runtime/device/cuda/cuda_kernels.h"

#include "runtime/kernels/base/families.h"

namespace pipeshard {

const KernelRegistry& cudaKernels() {
  static const KernelRegistry registry = [] {
    KernelRegistry all(KernelRegistry::OtherTypes::kRefused);
    kernels::addUnaryKernels(all);
    kernels::addBinaryKernels(all);
    kernels::addBitwiseKernels(all);
    kernels::addPowKernels(all);
    kernels::addComparisonKernels(all);
    kernels::addCastKernels(all);
    kernels::addMatMulKernels(all);
    kernels::addReduceKernels(all);
    kernels::addSoftmaxKernels(all);
    kernels::addNormalizationKernels(all);
    kernels::addLossKernels(all);
    kernels::addViewKernels(all);
    kernels::addTransposeKernels(all);
    kernels::addCopyKernels(all);
    kernels::addPadKernels(all);
    kernels::addGatherKernels(all);
    kernels::addActivationGradKernels(all);
    kernels::addOptimizerKernels(all);
    kernels::addCollectiveKernels(all);
    return all;
  }();
  return registry;
}

}  // namespace pipeshard
