// One function per family of operators; each adds its kernels to the registry of the device that the program
// or module is linked for. Standard operators first.
#pragma once

#include "runtime/kernels/base/kernel.h"

namespace pipeshard::kernels {

// All of them.
void addAllKernels(KernelRegistry& registry);

void addUnaryKernels(KernelRegistry& registry);       // Neg, Exp, Gelu, Clip, ...
void addBinaryKernels(KernelRegistry& registry);      // Add, Max, And, ...
void addBitwiseKernels(KernelRegistry& registry);     // BitShift, BitwiseAnd, ...
void addPowKernels(KernelRegistry& registry);         // Pow
void addComparisonKernels(KernelRegistry& registry);  // Equal, Less, Where, ...
void addCastKernels(KernelRegistry& registry);        // Cast, CastLike
void addMatMulKernels(KernelRegistry& registry);      // MatMul, FusedMatMul, Gemm
void addAttentionKernels(KernelRegistry& registry);   // Attention and its gradients
void addReduceKernels(KernelRegistry& registry);      // ReduceSum, ...
void addSquareSumKernels(KernelRegistry& registry);   // SquareSum
void addScanKernels(KernelRegistry& registry);        // ArgMax, ArgMin, CumSum, TopK
void addSoftmaxKernels(KernelRegistry& registry);     // Softmax, LogSoftmax and their gradients
// LayerNormalization and its gradients, LpNormalization
void addNormalizationKernels(KernelRegistry& registry);
void addBatchNormalizationKernels(KernelRegistry& registry);  // BatchNormalization and its gradients
void addConvolutionKernels(KernelRegistry& registry);         // Conv and its gradients, ConvTranspose
// MaxPool, AveragePool, their gradients, GlobalAveragePool, GlobalMaxPool
void addPoolingKernels(KernelRegistry& registry);
// SoftmaxCrossEntropyLoss, its gradient, NegativeLogLikelihoodLoss
void addLossKernels(KernelRegistry& registry);
void addViewKernels(KernelRegistry& registry);  // Reshape, Squeeze, Identity, Dropout, ...
// Shape, Constant, ConstantOfShape, Range, OneHot, Trilu, ...
void addMakerKernels(KernelRegistry& registry);
void addTransposeKernels(KernelRegistry& registry);  // Transpose
void addCopyKernels(KernelRegistry& registry);       // Slice, Split, Concat, Expand, Tile
void addPadKernels(KernelRegistry& registry);        // Pad
void addGatherKernels(KernelRegistry& registry);     // Gather and its gradient
// GatherElements and its gradient, GatherND, ScatterElements, ScatterND
void addScatterKernels(KernelRegistry& registry);
void addActivationGradKernels(KernelRegistry& registry);  // Relu, Gelu, Mish, Swish
void addOptimizerKernels(KernelRegistry& registry);       // SGD, Adam, Lion and the like: docs/operators.md
void addCollectiveKernels(KernelRegistry& registry);      // AllReduce, AllGather, ReduceScatter, AllToAll

}  // namespace pipeshard::kernels
