#include "runtime/kernels/base/cpu_kernels.h"

#include "runtime/kernels/base/families.h"

namespace pipeshard {

const KernelRegistry& cpuKernels() {
  static const KernelRegistry registry = [] {
    KernelRegistry all;
    kernels::addUnaryKernels(all);
    kernels::addBinaryKernels(all);
    kernels::addBitwiseKernels(all);
    kernels::addPowKernels(all);
    kernels::addComparisonKernels(all);
    kernels::addCastKernels(all);
    kernels::addMatMulKernels(all);
    kernels::addAttentionKernels(all);
    kernels::addReduceKernels(all);
    kernels::addSquareSumKernels(all);
    kernels::addScanKernels(all);
    kernels::addSoftmaxKernels(all);
    kernels::addNormalizationKernels(all);
    kernels::addBatchNormalizationKernels(all);
    kernels::addConvolutionKernels(all);
    kernels::addPoolingKernels(all);
    kernels::addLossKernels(all);
    kernels::addViewKernels(all);
    kernels::addMakerKernels(all);
    kernels::addTransposeKernels(all);
    kernels::addCopyKernels(all);
    kernels::addPadKernels(all);
    kernels::addGatherKernels(all);
    kernels::addScatterKernels(all);
    kernels::addActivationGradKernels(all);
    kernels::addOptimizerKernels(all);
    kernels::addCollectiveKernels(all);
    return all;
  }();
  return registry;
}

}  // namespace pipeshard
