// How a pipeshard::Attention, or one of its gradients, is called: what lies over its scores, and at which
// input what is. One place for bodies, rules and kernels.
//
//   scores = Scale Q K^T, then, in the order of attribute `overlays`:
//     mask   scores where Mask is true, else Fill    inputs Mask (bool), Fill (a scalar)
//     bias   scores + Bias                           input Bias
//   P = softmax(scores), over the keys; attribute nan_to_zero: 0 where it is NaN
//     drop   P Factor where Keep is true, else 0     inputs Keep (bool), Factor (a scalar)
//   Y = P V
//
// Two biases, one behind the other, are two inputs, each with its own axes: a bias of heads and positions
// [h,i,j] and an added mask of examples [b,1,1,j]. Their sum would be [b,h,i,j], as large as the scores,
// which exist in no other place; and stages would send it, and its gradient, in place of the two.
//
// Groups: K and V may have 1 where Q has more in the last axis before the matrices. All of Q's matrices there
// have these keys and values.
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
  int second_bias = -1;  // behind the first
  int keep = -1;         // Factor follows
  bool nan_to_zero = false;
  int inputs = 0;  // how many there are

  int key() const { return query + 1; }
  int value() const { return query + 2; }
  int scale() const { return query + 3; }
  int fill() const { return mask < 0 ? -1 : mask + 1; }
  int factor() const { return keep < 0 ? -1 : keep + 1; }
  bool biasFirst() const { return bias >= 0 && bias < mask; }
  std::vector<int> biases() const;
};

// What precedes Q in a gradient: dY, RowMax, RowSum.
inline constexpr int kAttentionGradientInputs = 3;

// Do several matrices of Q have the same keys and values?
bool isGrouped(const Shape& query, const Shape& key);

// Error(kBadModel) for `overlays` that do not exist.
AttentionForm attentionForm(std::string_view overlays, bool nan_to_zero, bool gradient);
AttentionForm attentionForm(const Node& node);

// "", "mask", "bias", "mask_bias", "bias_mask", "bias_bias", "mask_bias_bias", "bias_bias_mask", and each
// with "drop" as its last: "drop", "mask_drop".
const std::vector<std::string>& attentionOverlays();
// The overload of a call: the overlays, with "safe" behind them where NaN becomes 0: "mask_bias_safe".
std::string attentionOverload(std::string_view overlays, bool nan_to_zero);
// Of an AttentionGrad in groups, whose body sums over them: with "grouped" in front.
std::string groupedOverload(std::string_view overload);

}  // namespace pipeshard
