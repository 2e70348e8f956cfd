// Roots in files of PyTorch's TorchScript exporter, which writes one call of the module as several nodes. At
// 0 a root's slope is infinite; PyTorch has 0 for the call, and so has the rule of a node of which one of
// these holds. Each asks of the node that the context is of. A root that somebody wrote out gets what PyTorch
// makes of it, which is not a number.
#pragma once

#include "onnx_import/autodiff/gradient_context.h"

namespace pipeshard {

// Sqrt of Tensor.std: sqrt(mean(d d) n / (n - 1)), d = x - mean(x). That of a mean without factors is none.
bool isRootOfDeviation(const GradientContext& c);

// Sqrt of F.cosine_similarity, sqrt(sum(x x) sum(y y)), behind which a Max with a positive number hides 0.
bool isRootOfCosine(const GradientContext& c);

// Pow of torch.cdist, sum((a - b)^2)^(1 / (2 + 1e-6)) of two views. F.pairwise_distance has no views, and
// another gradient at 0.
bool isRootOfDistance(const GradientContext& c);

// Sqrt of torch.cdist of many or unknown rows: sqrt(max([-2a, |a|^2, 1] [b, 1, |b|^2]^T, 0)).
bool isRootOfProducts(const GradientContext& c);

}  // namespace pipeshard
