// What a lowering works with: the node to replace, what is known of its inputs, and ways to emit the nodes
// that take its place.
//
// Everything that is emitted gets a type and a static shape, a name that starts with the node's, and its
// metadata, so that it belongs to the same module. Constants of one lowering are shared.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/op_emitter.h"

namespace pipeshard {

class LoweringContext : public OpEmitter {
 public:
  // `node`: of the builder's graph, or just taken from it. What is emitted goes to the end of the graph.
  LoweringContext(GraphBuilder& builder, const Node& node);

  // ---- the node ----
  const Node& node() const { return node_; }
  bool hasInput(size_t position) const {
    return position < node_.inputs.size() && node_.inputs[position].valid();
  }
  ValueId input(size_t position) const;  // refuses a node that lacks it
  bool hasOutput(size_t position) const {
    return position < node_.outputs.size() && node_.outputs[position].valid();
  }
  Shape shape(ValueId value) const { return builder_.graph().shape(value); }
  int64_t rank(ValueId value) const { return std::ssize(builder_.graph().shape(value)); }
  DataType type(ValueId value) const { return builder_.graph().dataType(value); }
  Shape outputShape(size_t position = 0) const { return builder_.graph().shape(output(position)); }
  DataType outputType(size_t position = 0) const { return builder_.graph().dataType(output(position)); }
  // Whether type and shape of an output are known before it is given.
  bool hasOutputType(size_t position = 0) const {
    return hasStaticType(builder_.graph().value(output(position)));
  }
  // What an input holds, if it is a constant; nullopt if it is absent. Refuses one that is not constant.
  std::optional<std::vector<int64_t>> constantIntegers(size_t position) const;
  std::optional<std::vector<double>> constantNumbers(size_t position) const;
  // Whether input `position` is absent or a constant.
  bool isKnown(size_t position) const;

  // Says what an output is: a value of its type and shape, which it gets if they are not known. An output
  // that the node leaves out is not made.
  void give(size_t position, ValueId value);

  // Input `position` is a table that the model computes with: if it is an initializer, it is no parameter.
  void neverTrain(size_t position);

  // Whether operators that are new in this opset may be emitted.
  bool hasOperatorsOf(int opset) const { return version() == 0 || version() >= opset; }

  // Refuses a table of numbers that is too large to be kept in a model. Asked for before a vector is made
  // whose length a file says.
  void requireTable(const Shape& shape) const;

  // Error(kBadModel) naming the node, its operator and `reason`.
  [[noreturn]] void refuse(std::string_view reason) const;

  // ---- emitting, beside what OpEmitter has ----
  ValueId scalar(DataType type, double number) override;
  ValueId integers(const std::vector<int64_t>& numbers) override;
  // A constant of any numeric type.
  ValueId numbers(DataType type, Shape shape, const std::vector<double>& elements);

  // A graph input that is drawn in every step: bool for kTrue, else of a floating-point type.
  ValueId drawn(std::string_view name, DataType type, Shape shape, RandomNumbers numbers);

  ValueId slice(ValueId x, int64_t axis, int64_t from, int64_t to);  // x itself for the whole axis
  ValueId reversed(ValueId x, int64_t axis);
  ValueId concat(const std::vector<ValueId>& parts, int64_t axis);  // the part itself for one
  ValueId gather(ValueId x, int64_t axis, const std::vector<int64_t>& indices);
  ValueId matMul(ValueId a, ValueId b);  // broadcasts as numpy's matmul, ranks >= 2
  // Its gradient is 0 at both ends.
  ValueId clip(ValueId x, double low, double high);
  ValueId unsqueeze(ValueId x, const std::vector<int64_t>& axes);  // axes of the result; x itself for none
  ValueId squeeze(ValueId x, int64_t axis);

 private:
  ValueId emit(std::string_view op_type, std::vector<ValueId> inputs, DataType type, Shape shape,
               Attributes attributes) override;
  void requireAxis(const Shape& of, int64_t axis) const;
  ValueId output(size_t position) const;  // refuses a node that lacks it
  Constant number(DataType type, double number) const;
  const Constant* constantOf(size_t position) const;
  ValueId constant(std::string_view name, Constant content);  // never trained

  int64_t made_ = 0;  // nodes
  GraphBuilder& builder_;
  Node node_;
  std::string prefix_;
  std::map<std::pair<DataType, double>, ValueId> scalars_;
  std::map<std::vector<int64_t>, ValueId> integers_;
  std::map<std::string, int> name_uses_;
};

}  // namespace pipeshard
