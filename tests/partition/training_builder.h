// Training graphs for tests, built by hand from operators without meaning: what counts is who reads what. The
// backward nodes mirror the forward ones, as reverse-mode differentiation makes them.
//
// With a number of rows, values know what the rows of a batch mean to them, as sharding/batch/time_axis.h
// says, and show it: {rows, kTokens, kOtherSize}, {kTokens, rows, kOtherSize}, or with rows and tokens merged
// {rows * kTokens, kOtherSize}; all else is {kOtherSize}. Passes are then made of ONNX's operators, so that
// factor rules tell how they can be cut: Max of several values where the operator does not matter, Mul, Sum
// and Neg for what is linear, ReduceSum, Expand, Reshape. The gradient of a split value is split, of a sum
// invariant, of an invariant value a sum; a backward node reads what such a gradient can be made of.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/graph/training_graph.h"
#include "ir/plan/plan.h"
#include "partition/stages/partition_options.h"

namespace pipeshard {

inline constexpr int64_t kOtherSize = 101;  // of every axis that is not the batch
inline constexpr int64_t kTokens = 50;      // of a row; more than there are rows

class TrainingBuilder {
 public:
  enum class Kind : uint8_t { kInvariant, kSplit, kSum };

  // Without rows: a graph of one size, whose values are what they may be.
  explicit TrainingBuilder(int64_t microbatches, int64_t rows = 0);

  ValueId input(const std::string& name, int axis = 0);   // axis -1: not cut
  ValueId parameter(const std::string& name);             // a weight reference
  ValueId smallParameter(const std::string& name);        // an in-memory constant
  ValueId weight(const std::string& name);                // a weight reference that is not trained
  ValueId constant(const std::string& name);              // an in-memory constant that is not trained
  ValueId total(const std::string& name, ValueId input);  // a prologue node on the input, and its total

  // A forward node; its output has the name and (for uneven FLOPs) this many rows. With the builder's rows:
  // split, if an input is (then no input may be a sum); else a sum, if an input is; else invariant.
  ValueId op(const std::string& name, const std::vector<ValueId>& inputs, int64_t rows = 2);
  // output = input + bias: both gradients are the output's gradient itself, so no node computes them.
  ValueId bias(const std::string& name, ValueId input, ValueId parameter);

  // A forward node that also reads and updates a state (a weight reference, "<name>_state").
  ValueId stateful(const std::string& name, const std::vector<ValueId>& inputs);

  // With the builder's rows only.
  // a sum, from split and invariant values
  ValueId reduce(const std::string& name, const std::vector<ValueId>& inputs);
  // as op, with rows and tokens merged on the way
  ValueId reshape(const std::string& name, const std::vector<ValueId>& inputs);
  // split, from invariant values; reads its shape
  ValueId expand(const std::string& name, const std::vector<ValueId>& inputs);
  // a sum: the rows times something invariant
  ValueId share(const std::string& name, const std::vector<ValueId>& inputs);
  ValueId growingConstant(const std::string& name);  // split; all rows are equal
  Kind kind(ValueId id) const;

  // The loss (a scalar) of these values, the backward nodes, and the update nodes with `states` states per
  // parameter.
  TrainingGraph finish(const std::vector<ValueId>& loss_inputs, int states = 1);

 private:
  // What one call has added: its last node, and what it was given.
  struct Forward {
    NodeId node;
    std::vector<ValueId> inputs;
    std::string op_type;
  };
  ValueId forward(const std::string& op_type, const std::vector<ValueId>& inputs, const std::string& name,
                  Kind kind);
  // With rows: the nodes that make a value of this kind of the others, as the words on top say.
  ValueId lowered(Phase phase, const std::string& op_type, const std::vector<ValueId>& inputs,
                  const std::string& name, Kind kind, NodeId forward);
  ValueId linear(Phase phase, const std::vector<ValueId>& inputs, const std::string& name, NodeId forward);
  ValueId summed(Phase phase, ValueId value, const std::string& name, const Shape& shape, NodeId forward);
  Shape shapeOf(Kind kind) const;
  bool any(const std::vector<ValueId>& values, Kind kind) const;
  ValueId integers(const std::string& name, const std::vector<int64_t>& elements);
  ValueId rowsConstant();
  std::vector<ValueId> gradientReads(const Forward& forward, ValueId in, ValueId gradient);
  ValueId node(Phase phase, const std::string& op_type, const std::vector<ValueId>& inputs,
               const std::string& output, Shape shape, NodeId forward);
  ValueId value(const std::string& name, Shape shape) {
    return GraphBuilder(training_.graph).addValue(name, DataType::kFloat32, std::move(shape));
  }
  void differentiate(ValueId seed);
  bool isState(ValueId id) const;
  ValueId gradientOf(ValueId value, NodeId producer);
  void addUpdates(int states);

  const int64_t rows_;
  TrainingGraph training_;
  std::map<ValueId, Kind> kinds_;          // with rows; what is missing is invariant
  std::map<ValueId, ValueId> transposed_;  // of inputs whose batch is axis 1
  std::vector<Forward> forward_;
  std::map<ValueId, std::vector<ValueId>> gradients_;  // contributions, by value
};

// A chain of `length` nodes, each with a parameter "w<i>", on input "x".
TrainingGraph chainTraining(int length, int64_t microbatches);

// What partitionTraining makes of it, which plan.json keeps.
Plan planFor(const TrainingGraph& training, const PartitionOptions& options);

}  // namespace pipeshard
