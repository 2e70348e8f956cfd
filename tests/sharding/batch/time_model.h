// Small models that can be built for any batch size, and the comparison of a batch with its microbatches.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "sharding/batch/time_axis.h"
#include "sharding/batch/training_family.h"
#include "tests/sharding/graph_runner.h"

namespace pipeshard::testing {

// Builds a prepared graph. Parameters depend on their names only, so that two sizes of a model have the same
// ones.
class Model {
 public:
  explicit Model(int64_t batch_size) : batch(batch_size), builder(graph) { graph.opset_imports = {{"", 18}}; }
  Model(const Model&) = delete;

  ValueId input(const std::string& name, Shape shape, int axis = 0);  // float64, cut along `axis`
  // int64, cut along axis 0; some are -100
  ValueId labels(const std::string& name, Shape shape, int64_t classes);
  ValueId parameter(const std::string& name, const Shape& shape);  // float64, marked as a PARAMETER
  ValueId number(double value);                                    // float64 scalar constant
  ValueId integers(const std::vector<int64_t>& elements);          // int64 list constant
  ValueId constant(Constant value) { return builder.addConstant("constant", std::move(value)); }
  ValueId op(const std::string& type, std::vector<ValueId> inputs, Shape shape,
             std::map<std::string, Attribute> attributes = {}, DataType data_type = DataType::kFloat64);
  ValueId sumAll(ValueId value, DataType type = DataType::kFloat64) {
    return op("ReduceSum", {value}, {}, {{"keepdims", int64_t{0}}}, type);
  }
  ValueId meanAll(ValueId value) { return op("ReduceMean", {value}, {}, {{"keepdims", int64_t{0}}}); }

  int64_t batch;
  Graph graph;
  GraphBuilder builder;
  std::vector<BatchInput> inputs;
  std::vector<ValueId> constants;          // WantedValues::constants
  std::map<std::string, int64_t> classes;  // of label inputs
};

using BuildModel = std::function<ValueId(Model&)>;  // returns the loss

// Data of the whole batch for every input. With `ignore_all`, every label is -100.
Tensors wholeBatch(const Model& model, uint64_t seed, bool ignore_all = false);

// A part of the batch with the graph that computes it.
struct BatchPart {
  Rows rows;
  const Graph* graph = nullptr;
  const TimeAxisResult* time = nullptr;
};

// sum over the parts of the loss, with the totals computed by the prologue first: the meaning of
// ir/graph/training_graph.h. All inputs are cut along the axis that `inputs` says.
Constant sumOverParts(const std::vector<BatchPart>& parts, const std::vector<BatchInput>& inputs,
                      int64_t batch, const Tensors& whole, const Tensors& weights);

// Loss of a batch of 8 computed at once, and as the sum over `count` microbatches, equal or not. With
// `compare` the analysis sees the graph of another batch size too.
struct Losses {
  double whole = 0;
  double parts = 0;
};
Losses compareLosses(const BuildModel& build, int64_t count, uint64_t seed, bool ignore_all = false,
                     bool compare = false);

}  // namespace pipeshard::testing
