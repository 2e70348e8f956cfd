// Building the training graph: loss, gradients, optimizer. Graph to Graph, no protobuf.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/graph/training_graph.h"

namespace pipeshard {

// What `--loss` says.
struct LossSpec {
  enum class Kind { kModelOutput, kCrossEntropy, kMeanSquaredError };
  Kind kind = Kind::kModelOutput;
  std::string prediction;  // a value of the graph (kModelOutput: the scalar output; "" = the only one)
  std::string target;  // a value or input of the graph; if there is none of that name, a new input is made
};
// "" | "NAME" | "cross-entropy:LOGITS,LABELS" | "mse:PREDICTION,TARGET". Error(kUsage) shows the forms.
LossSpec parseLoss(std::string_view text);
std::string lossToString(const LossSpec& spec);

// Adds the loss nodes if needed and returns the scalar loss. Ambiguous (several or no scalar outputs):
// Error(kUsage) that lists the candidates as ready-to-paste options. New inputs get symbols so that they are
// bound like the others (call it on the graph as read, before prepareModel) and logits' class axis: labels
// [batch, ...] int64 for logits [batch, classes] or [batch, ..., classes] (class axis last).
ValueId attachLoss(Graph& graph, const LossSpec& spec);

// Which optimizer, with its hyperparameters complete. None: evaluation, without gradients.
struct OptimizerSpec {
  enum class Kind { kSgd, kAdam, kAdamW, kNone };
  Kind kind = Kind::kSgd;
  double learning_rate = 1e-2;
  double momentum = 0;    // SGD
  bool nesterov = false;  // SGD
  double beta1 = 0.9;     // Adam, AdamW
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  // AdamW default 0.01 (decoupled); Adam, SGD: added to the gradient
};
// "sgd:lr=0.1,momentum=0.9" | "adam:lr=1e-3,beta1=..,beta2=..,eps=..,weight_decay=.." | "adamw:...".
// Error(kUsage) names the key and the allowed ones. Meaning as in torch.optim. "none" has no keys.
OptimizerSpec parseOptimizer(std::string_view text);
std::string optimizerToString(const OptimizerSpec& spec);  // canonical; parse gives the same spec

// Changes every float32 value, constant, Cast target and attribute type of the graph to `precision` (kFloat64
// for validation; kFloat32 leaves it as it is). Weight references keep their bytes: the value's type then
// differs from the file's, and `source types` remembers the latter (by value name).
struct PrecisionChange {
  std::map<std::string, DataType> source_types;
};
PrecisionChange setPrecision(Graph& graph, DataType precision);

// Which initializers are trained: those that the exporter marks as PARAMETER; if it marks none, every
// floating-point weight of the graph that is no constant of the arithmetic (heuristic documented in the
// source, parameters.cc). What overrideParameters says goes before both. In order of id.
std::vector<ValueId> trainableParameters(const Graph& graph);

// Trains the floating-point weights whose names contain a match of one of the regular expressions in `train`,
// and does not train those of `freeze`; `train` wins where both match ("--freeze . --train ^head" trains the
// head alone). To be called on the graph as read. Error(kUsage) for a pattern that is no regular expression
// or found in no name.
void overrideParameters(Graph& graph, const std::vector<std::string>& train,
                        const std::vector<std::string>& freeze);

// What the user should know about the choice: frozen weights, those taken for constants, those of one element
// that are trained.
std::vector<std::string> parameterNotes(const Graph& graph);

// Error(kBadModel) naming the parameter, if one is neither float32 nor float64.
void requireTrainableTypes(const Graph& graph);

// A microbatch's forward graph with what the time-axis analysis found; see ir/graph/training_graph.h for the
// meaning.
struct ForwardGraph {
  Graph graph;   // prepared, for one microbatch
  ValueId loss;  // scalar share of the loss
  std::vector<BatchInput> inputs;
  std::vector<PrologueTotal> totals;  // `part` nodes are already in the graph
  int64_t microbatches = 1;
};

// Whether a gradient rule for the operator is registered, or it has no gradient by nature (Shape, Equal,
// Floor, ...). A node with neither is an error only on a path from a parameter to the loss; if it has an ONNX
// function body, it is better expanded before (PrepareOptions::supported).
bool hasGradientRule(std::string_view domain, std::string_view op_type);

// The training graph's nodes are in the order prologue, forward, backward, update; forward nodes that the
// loss does not need are gone (so are a model's other outputs); its graph outputs are the loss, the parts of
// totals, the updated forward states, the gradient parts and what the updates give. Value names:
// "<value>_grad" ("<parameter>_grad.<k>" for several parts), "<parameter>.gradient", "<parameter>.<state>",
// "<parameter>.updated", "<parameter>.<state>.updated", "step", "<value>.prologue" for a prologue's own copy
// of a forward value. Backward nodes are called "<forward node>_grad/<operator>" and carry its metadata.
//
// Forward states are the running statistics of the batch normalisations that the loss needs, in training
// mode: forward_states.h.
//
// Appends backward nodes (reverse mode; accumulation of several uses by Sum/Add; only where a parameter is
// reached), splits them into input and weight parts, and appends the update nodes. An operator without
// gradient on a path from a parameter to the loss: Error(kBadModel) naming node and operator. Likewise
// running statistics that something else reads. Without an optimizer (kNone): the forward pass alone;
// parameters have no gradients, running statistics stay as they are.
TrainingGraph buildTrainingGraph(ForwardGraph forward, const OptimizerSpec& optimizer);

}  // namespace pipeshard
