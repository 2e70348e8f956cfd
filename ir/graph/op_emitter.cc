#include "ir/graph/op_emitter.h"

#include <algorithm>
#include <utility>

namespace pipeshard {

int OpEmitter::version() const {
  const auto found = emitted_into_.opset_imports.find("");
  return found == emitted_into_.opset_imports.end() ? 0 : found->second;
}

ValueId OpEmitter::unary(std::string_view op_type, ValueId x) {
  return op(op_type, {x}, emitted_into_.dataType(x), emitted_into_.shape(x));
}

ValueId OpEmitter::binary(std::string_view op_type, ValueId a, ValueId b) {
  return op(op_type, {a, b}, emitted_into_.dataType(a),
            broadcastShapes(emitted_into_.shape(a), emitted_into_.shape(b)));
}

ValueId OpEmitter::compare(std::string_view op_type, ValueId a, ValueId b) {
  return op(op_type, {a, b}, DataType::kBool,
            broadcastShapes(emitted_into_.shape(a), emitted_into_.shape(b)));
}

ValueId OpEmitter::where(ValueId condition, ValueId a, ValueId b) {
  const Shape choices = broadcastShapes(emitted_into_.shape(a), emitted_into_.shape(b));
  return op("Where", {condition, a, b}, emitted_into_.dataType(a),
            broadcastShapes(emitted_into_.shape(condition), choices));
}

ValueId OpEmitter::cast(ValueId x, DataType wanted) {
  if (emitted_into_.dataType(x) == wanted) return x;
  return op("Cast", {x}, wanted, emitted_into_.shape(x), {{"to", static_cast<int64_t>(wanted)}});
}

ValueId OpEmitter::reduce(std::string_view op_type, ValueId x, const std::vector<int64_t>& axes,
                          bool keep_axes, DataType type) {
  if (axes.empty()) return x;
  const Shape whole = emitted_into_.shape(x);
  Shape result;
  for (int64_t axis = 0; axis < std::ssize(whole); ++axis) {
    const bool reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    if (!reduced) result.push_back(whole[axis]);
    if (reduced && keep_axes) result.push_back(1);
  }
  Attributes attributes{{"keepdims", int64_t{keep_axes}}};
  std::vector<ValueId> inputs{x};
  const int axes_are_input = op_type == "ReduceSum" ? 13 : 18;
  if (version() == 0 || version() >= axes_are_input) {
    inputs.push_back(integers(axes));
  } else {
    attributes["axes"] = axes;
  }
  if (type == DataType::kUndefined) type = emitted_into_.dataType(x);
  return op(op_type, std::move(inputs), type, std::move(result), std::move(attributes));
}

ValueId OpEmitter::addNumber(ValueId x, double number) {
  return binary("Add", x, scalar(emitted_into_.dataType(x), number));
}

ValueId OpEmitter::reshape(ValueId x, const Shape& target) {
  if (emitted_into_.shape(x) == target) return x;
  Attributes attributes;  // a 0 is a size, not that of x
  if (std::find(target.begin(), target.end(), 0) != target.end()) attributes["allowzero"] = int64_t{1};
  return op("Reshape", {x, integers(target)}, emitted_into_.dataType(x), target, std::move(attributes));
}

ValueId OpEmitter::expand(ValueId x, const Shape& target) {
  if (emitted_into_.shape(x) == target) return x;
  return op("Expand", {x, integers(target)}, emitted_into_.dataType(x), target);
}

ValueId OpEmitter::transpose(ValueId x, const std::vector<int64_t>& permutation) {
  const Shape& from = emitted_into_.shape(x);
  Shape to;
  for (int64_t axis : permutation) to.push_back(from[axis]);
  return op("Transpose", {x}, emitted_into_.dataType(x), std::move(to), {{"perm", permutation}});
}

}  // namespace pipeshard
