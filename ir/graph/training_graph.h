// TrainingGraph: a prepared Graph of one microbatch of a training step, plus roles.
//
// The step that it means, for microbatch count m (the single definition of the mathematics; every execution,
// on one device or many, computes exactly this):
//
//   for k in 0..m-1:  run the prologue nodes on microbatch k;          total_j = sum over k of part_j
//   for k in 0..m-1:  run forward and backward nodes on microbatch k,  reading the totals
//   loss       = sum over k of the value `loss`
//   gradient_p = sum over k, then over parts, of parameter p's gradient_parts          (for every parameter)
//   norm       = square root of the sum of squares of all elements of all gradients of trained parameters
//   scale      = min(1, clip_norm / (norm + 1e-6))                                    (where clip_norm > 0)
//   run the update nodes once, reading gradients, states, `step` and `gradient_scale`; outputs replace
//   parameters and states. Where the norm is taken and is not finite, they do not: the step changes nothing.
//   (forward states are handed from microbatch to microbatch)
// Where the loss is scaled (LossScaling), backward nodes start from `loss_scale` in place of 1. Gradients are
// so many times as large; norm and scale are divided by it. It is a power of two, so that nothing is rounded.
// A step that trains nothing (evaluation) may have no loss, and has outputs: each is the concatenation of
// what the microbatches give.
//
// A mean over the batch has already been rewritten into sums divided by totals (sharding/batch/time_axis.h),
// so that sums over microbatches are exact, with ignored labels too.
//
// Graph inputs of `graph`: batch inputs, other (microbatch-independent) inputs, totals, and for the update:
// gradients, states, step. Graph initializers: parameters (usually WeightReferences), other weights,
// constants. A parameter is read by forward and backward nodes and by its update.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

enum class Phase : uint8_t {
  kPrologue,  // needs batch inputs only; runs for all microbatches before the first forward
  kForward,
  kBackward,       // the two below in one, where a stage need not tell them apart: no node's of TrainingGraph
  kBackwardInput,  // gradients that other backward nodes wait for
  kBackwardWeight,  // gradients of parameters: may run later than the input part of the same microbatch
  kUpdate,          // once per step
};
inline constexpr size_t kPhaseCount = 6;
std::string_view phaseName(Phase phase);  // "forward", "backward-input", ...
inline bool isBackward(Phase phase) {
  return phase == Phase::kBackward || phase == Phase::kBackwardInput || phase == Phase::kBackwardWeight;
}
// Runs once per microbatch.
inline bool isPass(Phase phase) { return phase == Phase::kForward || isBackward(phase); }

// An input that is cut into microbatches: microbatch k of m holds rows [k*s/m, (k+1)*s/m) of `axis`.
struct BatchInput {
  ValueId value;
  int axis = -1;  // -1: not cut; every microbatch reads the same
};

// A tensor beside the parameter that the optimizer keeps (Adam's moments). Starts as zeros, or as the
// parameter does (its moving average).
struct OptimizerState {
  std::string name;  // "momentum", "first_moment", "second_moment"
  ValueId value;     // graph input, read by the update
  ValueId updated;   // node output, same type and shape
  bool starts_as_parameter = false;
};

struct Parameter {
  ValueId value;  // an initializer
  // outputs of backward nodes, each of the parameter's shape; empty: no gradient reaches it
  std::vector<ValueId> gradient_parts;
  // graph input read by the update: the sum of all parts over all microbatches
  ValueId gradient;
  std::vector<OptimizerState> states;
  ValueId updated;  // node output, same type and shape as value
};

// A tensor that forward passes read and replace, without gradient: the running statistics of a batch
// normalisation. Microbatch k reads what microbatch k-1 gave; the first of a step reads what the last of the
// step before gave. Exactly one node, a forward one, reads `value`; it gives `updated`, or what leads to it.
struct ForwardState {
  ValueId value;    // an initializer
  ValueId updated;  // output of a forward node, same type and shape as value
};

// sum over microbatches of `part` (output of a prologue node); read by other nodes as graph input `total`.
struct PrologueTotal {
  ValueId part;
  ValueId total;
};

// An output of the model that a forward-only step hands to the user.
struct ModelOutput {
  std::string name;  // as the model calls it
  ValueId value;     // output of a forward node
  int axis = -1;     // that the rows of the batch are in; -1: every microbatch gives the same
};

// How the gradient of the loss is multiplied while float16 holds activations: `first` in the first step; half
// as much behind a step whose gradients are not finite; twice as much, `kMost` at most, behind `steps` finite
// ones since it last changed. Powers of two.
struct LossScaling {
  static constexpr double kMost = 16777216;  // 2^24
  double first = 0;                          // 0: nothing is scaled
  int64_t steps = 0;
};

struct TrainingGraph {
  Graph graph;
  std::vector<Phase> node_phase;  // by node index
  // by node: the forward node that a backward one is of (of a sum, the value's first reader), else invalid
  std::vector<NodeId> forward_node;
  std::vector<BatchInput> inputs;     // every input that the user's data provides
  std::vector<Parameter> parameters;  // in the model's order of initializers
  std::vector<PrologueTotal> totals;
  std::vector<ForwardState> forward_states;
  std::vector<ModelOutput> outputs;  // forward-only
  ValueId loss;                      // scalar: this microbatch's share of the loss; invalid: there is none
  ValueId step;  // int64 scalar input of the update, 1 in the first step; invalid if the optimizer needs none
  // 0: the norm of gradients is not taken; infinity: it is, and nothing is scaled.
  double clip_norm = 0;
  // float64 scalar input of the update: what it multiplies gradients with; invalid: nothing
  ValueId gradient_scale;
  LossScaling loss_scaling;
  // float32 scalar input of the backward pass, where loss_scaling has a first scale; else invalid
  ValueId loss_scale;
  int64_t microbatches = 1;
};

// A gradient reaches it and the optimizer updates it; any other parameter stays as it is.
inline bool isTrained(const Parameter& parameter) {
  return !parameter.gradient_parts.empty() && parameter.updated.valid();
}

// What a step computes for the user in its forward passes: the loss, if there is one, and the outputs.
std::vector<ValueId> forwardResults(const TrainingGraph& training);

// What the update of a parameter gives: its new value, then its states.
std::vector<ValueId> updatedValues(const Parameter& parameter);

// The forward nodes of a training graph, in graph order. A plan's layers are positions in this list.
std::vector<NodeId> forwardNodes(const TrainingGraph& training);

// The nodes of `phase` that the values depend on through nodes of that phase, in graph order. `producer` as
// in UseDef.
std::vector<NodeId> nodesBehind(const TrainingGraph& training, const std::vector<NodeId>& producer,
                                const std::vector<ValueId>& values, Phase phase);

// Throws Error(kInternal) naming the first broken invariant (roles refer to existing values of equal shape
// and type, node phases only read what earlier phases give, ...), after verifyGraph.
void verifyTrainingGraph(const TrainingGraph& training);

}  // namespace pipeshard
