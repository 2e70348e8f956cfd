// Groups of nodes that mean one thing become one node, before gradients are made.
//
//   Mul(x, 0.5), Pow(x, 3), Mul(.., 0.044715), Add, Mul(.., 0.79788), Tanh, Add(.., 1), Mul
//     =>  pipeshard::Gelu(x), overload "tanh"
//
// Eight kernels that each read and write x's bytes become one, and what the backward pass needs is x alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"
#include "onnx_import/patterns/more_rows.h"

namespace pipeshard {

enum class PatternKind : uint8_t {
  kGelu,             // x cdf(x) by the error function
  kGeluTanh,         // its approximation by tanh
  kSwish,            // x sigmoid(alpha x); with alpha 1 SiLU
  kAttention,        // softmax(q k^T) v
  kRmsNorm,          // x w / sqrt(mean(x^2) + epsilon) over the last axis
  kLayerNorm,        // (x - mean) / sqrt(variance + epsilon) w + b: LayerNormalization
  kCrossEntropy,     // log-softmax, then the likelihood of labels: SoftmaxCrossEntropyLoss
  kFusedProjection,  // a product whose columns are queries, keys and values: a product of each
  kLogSigmoid,       // log(sigmoid(x)), log(1 - sigmoid(x)): -softplus of -x, of x
};
std::string_view patternName(PatternKind kind);  // "Gelu (tanh)"

// Nodes that begin like a pattern and were left as they are.
struct NearMiss {
  PatternKind kind;
  std::string node;    // as messages name it
  std::string reason;  // "'tanh_3' is also read by Mul 'node_mul_7' (onnx::Mul)"
};

struct FoundPatterns {
  std::map<PatternKind, int> found;  // without those that there are none of
  std::vector<NearMiss> missed;      // in node order
  size_t nodes_before = 0, nodes_after = 0;
};

// Rewrites a prepared graph (static shapes). Values that remain keep their names; ids change. The same graph
// at another batch size is rewritten at the same nodes; one of a single row needs `more_rows` for that, where
// an axis of one may be the batch or not. A node that the file gives a sharding stays as it is.
FoundPatterns recognisePatterns(Graph& graph, MakeMoreRows more_rows = nullptr);

// "12 Gelu (tanh), 4 Swish: 480 nodes became 396"; "" for none.
std::string patternsToString(const FoundPatterns& patterns);

}  // namespace pipeshard
