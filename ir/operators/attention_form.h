// How a pipeshard::Attention, or one of its gradients, is called: what lies over its scores, and at which
// input what is. One place for bodies, rules and kernels.
//
//   scores = Scale Q K^T, then, in the order of attribute `overlays`:
//     mask   scores where Mask is true, else Fill    inputs Mask (bool), Fill (a scalar)
//     bias   scores + Bias                           input Bias
//   Y = softmax(scores) V, over the keys; attribute nan_to_zero: 0 where the softmax is NaN
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

// Input positions; -1: there is none.
struct AttentionForm {
  int query = 0;  // K, V and Scale follow, then the overlays in their order
  int mask = -1;  // Fill follows
  int bias = -1;
  bool nan_to_zero = false;
  int inputs = 0;  // how many there are

  int key() const { return query + 1; }
  int value() const { return query + 2; }
  int scale() const { return query + 3; }
  int fill() const { return mask < 0 ? -1 : mask + 1; }
  bool biasFirst() const { return bias >= 0 && bias < mask; }
};

// What precedes Q in a gradient: dY, RowMax, RowSum.
inline constexpr int kAttentionGradientInputs = 3;

// Error(kBadModel) for `overlays` that do not exist.
AttentionForm attentionForm(std::string_view overlays, bool nan_to_zero, bool gradient);
AttentionForm attentionForm(const Node& node);

// "", "mask", "bias", "mask_bias", "bias_mask"
const std::vector<std::string>& attentionOverlays();
// The overload of a call: the overlays, with "safe" behind them where NaN becomes 0: "mask_bias_safe".
std::string attentionOverload(std::string_view overlays, bool nan_to_zero);

}  // namespace pipeshard
