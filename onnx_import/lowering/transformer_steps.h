// Steps that several operators of transformers have in common. Internal to onnx_import/lowering.
//
// They take forms that the graph's opset has: Gelu is one node from 20 on and LayerNormalization from 17 on;
// before that they are several.
#pragma once

#include <vector>

#include "onnx_import/lowering/lowering_context.h"

namespace pipeshard {

// ---- activations

// x * P(X <= x) of a standard normal X: by erf, or nearly that by tanh.
enum class GeluForm { kErf, kTanh };
ValueId gelu(LoweringContext& c, ValueId x, GeluForm form);
ValueId swish(LoweringContext& c, ValueId x, double alpha);  // x * sigmoid(alpha * x)

// ---- normalisations of the axes from `axis` on

// (x - mean) / sqrt(variance + epsilon) * scale + bias. All are of one type, scale and bias of the shape of
// these axes; either may be invalid: 1 and 0.
struct LayerNormalization {
  ValueId x;
  ValueId scale = {};
  ValueId bias = {};
  int64_t axis = 0;  // not negative
  double epsilon = 0;
};
ValueId layerNormalization(LoweringContext& c, const LayerNormalization& of);
// mean, and 1 / sqrt(variance + epsilon): x's shape with 1 for these axes.
struct RowMoments {
  ValueId mean;
  ValueId inverse_deviation;
};
RowMoments rowMoments(LoweringContext& c, ValueId x, int64_t axis, double epsilon);
// 1 / sqrt(mean(x * x) + epsilon), alike.
ValueId inverseRootMeanSquare(LoweringContext& c, ValueId x, int64_t axis, double epsilon);

// ---- attention. Heads are an axis of their own: [batch, heads, positions, size].

ValueId splitHeads(LoweringContext& c, ValueId x, int64_t heads);  // of [batch, positions, heads * size]
ValueId joinHeads(LoweringContext& c, ValueId x);                  // and back

struct AttentionHeads {
  ValueId query, key, value;        // query and key have one size, key and value one number of positions
  double scale = 0;                 // of the products of query and key; 0: 1 / sqrt(size)
  double softcap = 0;               // not 0: s becomes softcap * tanh(s / softcap)
  std::vector<ValueId> added = {};  // to that; each broadcasts to [batch, heads, queries, keys]
  ValueId seen = {};                // bool, broadcasts alike: which keys count. Invalid: all
  ValueId sink = {};  // broadcasts to [batch, heads, queries, 1]: the score of a key whose value is 0
};
// softmax(scores) * value: [batch, heads, queries, size of a value].
ValueId attend(LoweringContext& c, const AttentionHeads& heads);

// bool [positions, positions]: key j counts for query i if j <= i, and j > i - window where there is a
// window.
ValueId causalKeys(LoweringContext& c, int64_t positions, int64_t window = 0);
// bool [.., keys]: key j counts if j < length; lengths: [.., 1], integers.
ValueId keysBefore(LoweringContext& c, ValueId lengths, int64_t keys);

// ---- rotary embedding

// The first elements of the last axis, as pairs (a, b), turned by angles: (a cos - b sin, a sin + b cos).
// Half of them are the first of a pair: those at even places if interleaved, else the first half. cos and sin
// have one element per pair and broadcast with x; what x has beyond them stays.
ValueId rotated(LoweringContext& c, ValueId x, ValueId cos, ValueId sin, bool interleaved);

}  // namespace pipeshard
