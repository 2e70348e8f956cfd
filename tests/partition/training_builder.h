// Training graphs for tests, built by hand from operators without meaning: what counts is who reads what. The backward
// nodes mirror the forward ones, as reverse-mode differentiation makes them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/training_graph.h"

namespace pipeshard {

class TrainingBuilder {
 public:
  explicit TrainingBuilder(int64_t microbatches);

  ValueId input(const std::string& name, int axis = 0);   // axis -1: not cut
  ValueId parameter(const std::string& name);             // a weight reference
  ValueId smallParameter(const std::string& name);        // an in-memory constant
  ValueId weight(const std::string& name);                // a weight reference that is not trained
  ValueId constant(const std::string& name);              // an in-memory constant that is not trained
  ValueId total(const std::string& name, ValueId input);  // a prologue node on the input, and its total

  // A forward node; its output has the name and (for uneven FLOPs) this many rows.
  ValueId op(const std::string& name, const std::vector<ValueId>& inputs, int64_t rows = 2);
  // output = input + bias: both gradients are the output's gradient itself, so no node computes them.
  ValueId bias(const std::string& name, ValueId input, ValueId parameter);

  // A forward node that also reads and updates a state (a weight reference, "<name>_state").
  ValueId stateful(const std::string& name, const std::vector<ValueId>& inputs);

  // The loss (a scalar) of these values, the backward nodes, and the update nodes with `states` states per parameter.
  TrainingGraph finish(const std::vector<ValueId>& loss_inputs, int states = 1);

 private:
  struct Forward {
    NodeId node;
    bool is_bias = false;
  };
  ValueId node(Phase phase, const std::string& op_type, const std::vector<ValueId>& inputs, const std::string& output, Shape shape,
               NodeId forward);
  ValueId value(const std::string& name, Shape shape) {
    return GraphBuilder(training_.graph).addValue(name, DataType::kFloat32, std::move(shape));
  }
  void differentiate(ValueId seed);
  bool isState(ValueId id) const;
  ValueId gradientOf(ValueId value, NodeId producer);
  void addUpdates(int states);

  TrainingGraph training_;
  std::vector<Forward> forward_;
  std::map<ValueId, std::vector<ValueId>> gradients_;  // contributions, by value
};

// A chain of `length` nodes, each with a parameter "w<i>", on input "x".
TrainingGraph chainTraining(int length, int64_t microbatches);

}  // namespace pipeshard
