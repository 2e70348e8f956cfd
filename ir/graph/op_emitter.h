// Emits operators whose type and shape follow from their inputs. How a node is called, where it is put and
// whether equal ones are shared is for the class that derives: NodeEmitter (sharding/specs/node_emitter.h)
// and GradientContext (onnx_import/autodiff/gradient_context.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph/graph.h"

namespace pipeshard {

class OpEmitter {
 public:
  using Attributes = std::map<std::string, Attribute>;

  virtual ~OpEmitter() = default;

  // A standard operator with one output of this type and shape.
  ValueId op(std::string_view op_type, std::vector<ValueId> inputs, DataType type, Shape shape,
             Attributes attributes = {}) {
    return emit(op_type, std::move(inputs), type, std::move(shape), std::move(attributes));
  }
  ValueId unary(std::string_view op_type, ValueId x);               // same type and shape
  ValueId binary(std::string_view op_type, ValueId a, ValueId b);   // broadcast, type of a
  ValueId compare(std::string_view op_type, ValueId a, ValueId b);  // broadcast, bool
  ValueId where(ValueId condition, ValueId a, ValueId b);           // broadcast, type of a
  ValueId cast(ValueId x, DataType type);                           // x itself if it has the type
  // ReduceSum and its like; x itself for no axes. `type`: of the result, where it is not x's.
  ValueId reduce(std::string_view op_type, ValueId x, const std::vector<int64_t>& axes, bool keep_axes = true,
                 DataType type = DataType::kUndefined);
  ValueId addNumber(ValueId x, double number);     // x + number
  ValueId reshape(ValueId x, const Shape& shape);  // x itself if it has the shape
  ValueId expand(ValueId x, const Shape& shape);   // x itself if it has the shape
  ValueId transpose(ValueId x, const std::vector<int64_t>& permutation);

  virtual ValueId scalar(DataType type, double number) = 0;           // a constant of shape []
  virtual ValueId integers(const std::vector<int64_t>& numbers) = 0;  // a 1-D int64 constant

 protected:
  explicit OpEmitter(const Graph& graph) : emitted_into_(graph) {}
  int version() const;  // of the standard operators; 0: the graph does not say

 private:
  virtual ValueId emit(std::string_view op_type, std::vector<ValueId> inputs, DataType type, Shape shape,
                       Attributes attributes) = 0;

  const Graph& emitted_into_;
};

}  // namespace pipeshard
