// Batch normalisation of rows that several devices hold together: they exchange sums, so that all normalise
// with the moments of all rows. Used where a strategy cuts the rows (exchange_forms.h).
#pragma once

#include <vector>

#include "sharding/specs/node_emitter.h"

namespace pipeshard {

// BatchNormalization with training_mode = 1, pipeshard::BatchNormalizationInputGrad and ...WeightGrad.
bool needsBatchMoments(const Node& node);

// Over which devices, and how many elements each channel has on all of them together.
struct BatchTogether {
  std::vector<GroupId> groups;
  int64_t count = 0;
};

// Gives the node's outputs; `inputs` are the local ones. What the weight gradient gives are this device's
// parts of sums.
//
//   N = count;  mean = AllReduce(sum x) / N;  variance = AllReduce(sum (x - mean)^2) / N
//   inv = 1 / sqrt(variance + epsilon);  Y = (x - mean) (inv scale) + bias
//   running' = running momentum + batch (1 - momentum)   (equal on all devices; biased variance as in ONNX)
//   dX = scale inv (dY - AllReduce(sum dY) / N - (x - mean) inv^2 AllReduce(sum dY (x - mean)) / N)
//   dScale = inv sum dY (x - mean), dBias = sum dY
//
// Moments and sums are float64 whatever x is, and the rest is the arithmetic of the CPU kernel of one device,
// so that in float32 the order of the sums does not show: else a Relu behind it flips for values near zero,
// and gradients jump by a percent.
void emitBatchNormalization(NodeEmitter& emit, const Node& node, const std::vector<ValueId>& inputs,
                            const BatchTogether& together);

}  // namespace pipeshard
