// What the loss is, and the nodes that compute it.
#pragma once

#include <string>
#include <string_view>

#include "ir/graph/graph.h"

namespace pipeshard {

// What `--loss` says.
struct LossSpec {
  enum class Kind { kModelOutput, kCrossEntropy, kMeanSquaredError };
  Kind kind = Kind::kModelOutput;
  std::string prediction;  // a value of the graph (kModelOutput: the scalar output; "" = the only one)
  // a value or input of the graph; if there is none of that name, a new input is made
  std::string target;
};
// "" | "NAME" | "cross-entropy:LOGITS,LABELS" | "mse:PREDICTION,TARGET". Error(kUsage) shows the forms.
LossSpec parseLoss(std::string_view text);
std::string lossToString(const LossSpec& spec);

// Adds the loss nodes if needed and returns the scalar loss. Ambiguous (several or no scalar outputs):
// Error(kUsage) that lists the candidates as ready-to-paste options. New inputs get symbols so that they are
// bound like the others (call it on the graph as read, before prepareModel) and logits' class axis: labels
// [batch, ...] int64 for logits [batch, classes] or [batch, ..., classes] (class axis last).
ValueId attachLoss(Graph& graph, const LossSpec& spec);

}  // namespace pipeshard
