#include "runtime/kernels/base/families.h"

namespace pipeshard::kernels {

void addAllKernels(KernelRegistry& registry) {
  addUnaryKernels(registry);
  addBinaryKernels(registry);
  addBitwiseKernels(registry);
  addPowKernels(registry);
  addComparisonKernels(registry);
  addCastKernels(registry);
  addMatMulKernels(registry);
  addAttentionKernels(registry);
  addReduceKernels(registry);
  addSquareSumKernels(registry);
  addScanKernels(registry);
  addSoftmaxKernels(registry);
  addNormalizationKernels(registry);
  addBatchNormalizationKernels(registry);
  addConvolutionKernels(registry);
  addPoolingKernels(registry);
  addLossKernels(registry);
  addViewKernels(registry);
  addMakerKernels(registry);
  addTransposeKernels(registry);
  addCopyKernels(registry);
  addPadKernels(registry);
  addGatherKernels(registry);
  addScatterKernels(registry);
  addActivationGradKernels(registry);
  addOptimizerKernels(registry);
  addCollectiveKernels(registry);
}

}  // namespace pipeshard::kernels
