#include "onnx_import/lowering/lowering_context.h"

#include <algorithm>
#include <array>
#include <limits>

#include "ir/base/error.h"
#include "ir/graph/flat_ends.h"
#include "ir/graph/weight_role.h"

namespace pipeshard {

// What one operator becomes: its sizes say how much, and a file says its sizes.
constexpr int64_t kMostNodes = 1 << 17;
constexpr int64_t kMostNumbers = int64_t{1} << 24;  // of one constant

LoweringContext::LoweringContext(GraphBuilder& builder, const Node& node)
    : OpEmitter(builder.graph()), builder_(builder), node_(node), prefix_(node.name) {
  for (ValueId id : node.outputs) {
    if (prefix_.empty() && id.valid()) prefix_ = builder.graph().value(id).name;
  }
}

ValueId LoweringContext::input(size_t position) const {
  if (!hasInput(position)) refuse(fmt::format("it lacks input {}", position));
  return node_.inputs[position];
}

ValueId LoweringContext::output(size_t position) const {
  if (!hasOutput(position)) refuse(fmt::format("it lacks output {}", position));
  return node_.outputs[position];
}

const Constant* LoweringContext::constantOf(size_t position) const {
  return hasInput(position) ? builder_.graph().constant(node_.inputs[position]) : nullptr;
}

bool LoweringContext::isKnown(size_t position) const {
  return !hasInput(position) || constantOf(position) != nullptr;
}

std::optional<std::vector<int64_t>> LoweringContext::constantIntegers(size_t position) const {
  if (!hasInput(position)) return std::nullopt;
  if (!isKnown(position))
    refuse(fmt::format("its input {} ('{}') must be a constant", position,
                       builder_.graph().value(node_.inputs[position]).name));
  return integerElements(*constantOf(position));
}

std::optional<std::vector<double>> LoweringContext::constantNumbers(size_t position) const {
  if (!hasInput(position)) return std::nullopt;
  if (!isKnown(position))
    refuse(fmt::format("its input {} ('{}') must be a constant", position,
                       builder_.graph().value(node_.inputs[position]).name));
  return numericElements(*constantOf(position));
}

void LoweringContext::give(size_t position, ValueId value) {
  if (!hasOutput(position)) return;
  Value& given = builder_.graph().value(node_.outputs[position]);
  if (!hasStaticType(given)) {
    given.data_type = type(value);
    given.shape = shape(value);
    given.symbols.clear();
  }
  if (shape(value) != outputShape(position) || type(value) != outputType(position)) {  // it broadcasts, say
    refuse(fmt::format("its output {} is {}{} where its inputs make {}{}", position,
                       dataTypeName(outputType(position)), shapeToString(outputShape(position)),
                       dataTypeName(type(value)), shapeToString(shape(value))));
  }
  Node copy;
  copy.op_type = "Identity";
  copy.opset_version = version();
  copy.name = fmt::format("{}/output_{}", prefix_, position);
  copy.metadata = node_.metadata;
  copy.inputs = {value};
  copy.outputs = {node_.outputs[position]};
  builder_.graph().nodes.push_back(std::move(copy));
}

void LoweringContext::neverTrain(size_t position) {
  const ValueId id = input(position);
  Value& value = builder_.graph().value(id);
  if (builder_.graph().initializers.contains(id) && !isMade(value)) markMade(value);
}

void LoweringContext::requireTable(const Shape& shape) const {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  int64_t count = 1;
  for (const int64_t size : shape) {
    if (count > kMostNumbers / size)
      refuse(
          fmt::format("it would become a table {} of constants, as its sizes say, and {} is the most; "
                      "make its images, signals or lists smaller",
                      shapeToString(shape), kMostNumbers));
    count *= size;
  }
}

void LoweringContext::refuse(std::string_view reason) const {
  fail(ErrorCode::kBadModel, "{}: pipeshard cannot run it: {}", describeNode(node_), reason);
}

ValueId LoweringContext::emit(std::string_view op_type, std::vector<ValueId> inputs, DataType type,
                              Shape shape, Attributes attributes) {
  if (++made_ > kMostNodes)
    refuse(
        fmt::format("it would become more than {} operators, as many as its sizes say; make these smaller "
                    "(shorter sequences)",
                    kMostNodes));
  std::string name = fmt::format("{}/{}", prefix_, op_type);
  const int uses = name_uses_[name]++;
  if (uses > 0) name += fmt::format("_{}", uses);
  const ValueId result = builder_.addValue(name, type, std::move(shape));
  const NodeId id = builder_.addNode("", op_type, std::move(inputs), {result}, std::move(attributes));
  Node& made = builder_.graph().node(id);
  made.name = name;
  made.metadata = node_.metadata;
  return result;
}

ValueId LoweringContext::constant(std::string_view name, Constant content) {
  const ValueId id = builder_.addConstant(fmt::format("{}/{}", prefix_, name), std::move(content));
  markMade(builder_.graph().value(id));
  return id;
}

// What takes the type of an input can be a number of any type in a file that ONNX would not allow.
Constant LoweringContext::number(DataType type, double number) const {
  constexpr std::array kTypes{DataType::kFloat32, DataType::kFloat64, DataType::kFloat16, DataType::kBfloat16,
                              DataType::kInt32,   DataType::kInt64,   DataType::kBool};
  if (std::find(kTypes.begin(), kTypes.end(), type) == kTypes.end())
    refuse(
        fmt::format("it computes with {} as a number of its input's type, {}", number, dataTypeName(type)));
  return makeScalar(type, number);
}

ValueId LoweringContext::scalar(DataType type, double number) {
  const auto [found, fresh] = scalars_.try_emplace({type, number});
  if (fresh) found->second = constant("number", this->number(type, number));
  return found->second;
}

ValueId LoweringContext::integers(const std::vector<int64_t>& numbers) {
  const auto [found, fresh] = integers_.try_emplace(numbers);
  if (fresh) {
    found->second = constant("integers", makeConstant<int64_t>({std::ssize(numbers)}, numbers));
  }
  return found->second;
}

ValueId LoweringContext::numbers(DataType type, Shape shape, const std::vector<double>& elements) {
  Constant tensor{type, std::move(shape), {}};
  for (double element : elements) {
    const Constant one = number(type, element);
    tensor.bytes.insert(tensor.bytes.end(), one.bytes.begin(), one.bytes.end());
  }
  return constant("numbers", std::move(tensor));
}

ValueId LoweringContext::drawn(std::string_view name, DataType type, Shape shape, RandomNumbers numbers) {
  const ValueId id = builder_.addValue(fmt::format("{}/{}", prefix_, name), type, std::move(shape));
  builder_.graph().value(id).drawn = numbers;
  builder_.graph().inputs.push_back(id);
  return id;
}

void LoweringContext::requireAxis(const Shape& of, int64_t axis) const {
  if (axis >= 0 && axis < std::ssize(of)) return;
  refuse(fmt::format("a tensor {} on its way has no axis {}; the sizes of its inputs do not fit each other",
                     shapeToString(of), axis));
}

ValueId LoweringContext::slice(ValueId x, int64_t axis, int64_t from, int64_t to) {
  Shape result = shape(x);
  requireAxis(result, axis);
  if (from == 0 && to == result[axis]) return x;
  result[axis] = to - from;
  return op("Slice", {x, integers({from}), integers({to}), integers({axis})}, type(x), std::move(result));
}

ValueId LoweringContext::reversed(ValueId x, int64_t axis) {
  const int64_t before_first = std::numeric_limits<int64_t>::min();
  return op("Slice", {x, integers({-1}), integers({before_first}), integers({axis}), integers({-1})}, type(x),
            shape(x));
}

ValueId LoweringContext::concat(const std::vector<ValueId>& parts, int64_t axis) {
  if (parts.size() == 1) return parts[0];
  Shape result = shape(parts.at(0));
  requireAxis(result, axis);
  for (size_t i = 1; i < parts.size(); ++i) {
    requireAxis(shape(parts[i]), axis);
    result[axis] += shape(parts[i])[axis];
  }
  return op("Concat", parts, type(parts[0]), std::move(result), {{"axis", axis}});
}

ValueId LoweringContext::gather(ValueId x, int64_t axis, const std::vector<int64_t>& indices) {
  Shape result = shape(x);
  requireAxis(result, axis);
  result[axis] = std::ssize(indices);
  return op("Gather", {x, integers(indices)}, type(x), std::move(result), {{"axis", axis}});
}

ValueId LoweringContext::matMul(ValueId a, ValueId b) {
  const Shape left = shape(a);
  const Shape right = shape(b);
  if (left.size() < 2 || right.size() < 2)
    refuse(
        fmt::format("{} and {} on their way are no matrices; the sizes of its inputs do not fit each other",
                    shapeToString(left), shapeToString(right)));
  Shape result = broadcastShapes(Shape(left.begin(), left.end() - 2), Shape(right.begin(), right.end() - 2));
  result.push_back(left[left.size() - 2]);
  result.push_back(right.back());
  return op("MatMul", {a, b}, type(a), std::move(result));
}

ValueId LoweringContext::clip(ValueId x, double low, double high) {
  const ValueId limited = op("Clip", {x, scalar(type(x), low), scalar(type(x), high)}, type(x), shape(x));
  makeEndsFlat(builder_.graph().nodes.back());
  return limited;
}

ValueId LoweringContext::unsqueeze(ValueId x, const std::vector<int64_t>& axes) {
  if (axes.empty()) return x;
  Shape result = shape(x);
  for (int64_t axis : axes) {
    result.push_back(1);
    requireAxis(result, axis);
    std::rotate(result.begin() + axis, result.end() - 1, result.end());
  }
  if (version() < 13) return op("Unsqueeze", {x}, type(x), std::move(result), {{"axes", axes}});
  return op("Unsqueeze", {x, integers(axes)}, type(x), std::move(result));
}

ValueId LoweringContext::squeeze(ValueId x, int64_t axis) {
  Shape result = shape(x);
  requireAxis(result, axis);
  result.erase(result.begin() + axis);
  if (version() < 13) return op("Squeeze", {x}, type(x), result, {{"axes", std::vector<int64_t>{axis}}});
  return op("Squeeze", {x, integers({axis})}, type(x), std::move(result));
}

}  // namespace pipeshard
