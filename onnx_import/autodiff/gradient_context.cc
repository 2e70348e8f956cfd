#include "onnx_import/autodiff/gradient_context.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "ir/base/error.h"
#include "ir/operators/operator_facts.h"
#include "onnx_import/autodiff/functions.h"

namespace pipeshard {
namespace {

bool hasOneElement(const Shape& shape) {
  return std::all_of(shape.begin(), shape.end(), [](int64_t size) { return size == 1; });
}

std::string joinedIntegers(const std::vector<int64_t>& elements) {
  return fmt::format("{}", fmt::join(elements, "_"));
}

std::string forwardName(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!node.name.empty()) return node.name;
  for (ValueId output : node.outputs) {
    if (output.valid()) return graph.value(output).name;
  }
  return node.op_type;
}

// A Transpose that swaps the axes of a matrix.
bool isMatrixTranspose(const Graph& graph, const Node& node) {
  if (!node.is("Transpose") || graph.shape(node.inputs[0]).size() != 2) return false;
  const std::vector<int64_t> permutation = node.intsAttribute("perm");
  return permutation.empty() || permutation == std::vector<int64_t>{1, 0};
}

}  // namespace

BackwardBuilder::BackwardBuilder(Graph& graph)
    : graph_(graph), builder_(graph), forward_nodes_(graph.nodes.size()) {
  graph.opset_imports.emplace(std::string(kPipeshardDomain), 1);
  for (size_t n = 0; n < graph.nodes.size(); ++n) recordOutputs(NodeId(n));
}

void BackwardBuilder::recordOutputs(NodeId node) {
  for (ValueId output : graph_.node(node).outputs) {
    if (!output.valid()) continue;
    if (producer_.size() <= output.index()) producer_.resize(graph_.values.size());
    producer_[output.index()] = node;
  }
}

ValueId BackwardBuilder::scalar(DataType type, double number) {
  const auto [it, added] = scalars_.try_emplace({type, number});
  if (added)
    it->second =
        builder_.addConstant(fmt::format("grad/{}.{}", dataTypeName(type), number), makeScalar(type, number));
  return it->second;
}

ValueId BackwardBuilder::integers(const std::vector<int64_t>& elements) {
  const auto [it, added] = integers_.try_emplace(elements);
  if (added) {
    const std::string name =
        elements.size() > 16 ? "grad/integers" : "grad/integers." + joinedIntegers(elements);
    it->second = builder_.addConstant(name, makeConstant<int64_t>({std::ssize(elements)}, elements));
  }
  return it->second;
}

void BackwardBuilder::useFunction(std::string_view name, std::string_view overload) {
  if (graph().findFunction(kPipeshardDomain, name, overload) != nullptr) return;
  graph().functions.push_back(makePipeshardFunction(name, overload, graph().opset_imports.at("")));
}

// A weight that is kept transposed, y = x W^T: Transpose makes W^T from W, MatMul reads it. The backward pass
// gives the gradient of W^T as a Gemm, x^T dy, and Transpose's rule would transpose that: a pass over a
// matrix as large as the weight. Instead the product itself is turned round, (x^T dy)^T = dy^T x
// (transposeProduct), when nobody else reads W^T. The functions from here to transposeProduct, and
// transposedOutputGradient below, do this.
NodeId BackwardBuilder::producer(ValueId value) const {
  return value.index() < producer_.size() ? producer_[value.index()] : NodeId();
}

NodeId BackwardBuilder::soleReader(ValueId value) const {
  if (std::find(graph_.outputs.begin(), graph_.outputs.end(), value) != graph_.outputs.end()) return {};
  NodeId reader;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const std::vector<ValueId>& inputs = graph_.nodes[n].inputs;
    const auto reads = std::count(inputs.begin(), inputs.end(), value);
    if (reads == 0 || forward_nodes_[n].valid()) continue;
    if (reads > 1 || reader.valid()) return {};
    reader = NodeId(n);
  }
  return reader;
}

ValueId BackwardBuilder::transposeProduct(NodeId gemm) {
  const ValueId old = graph_.node(gemm).outputs[0];
  const Shape shape = {graph_.shape(old)[1], graph_.shape(old)[0]};
  const ValueId transposed = builder_.addValue(graph_.value(old).name, graph_.dataType(old), shape);
  Node& node = graph_.node(gemm);
  // (op(A) op(B))^T = op(B)^T op(A)^T: the operands change places, and each flag is inverted.
  const bool transpose_a = node.intAttribute("transA", 0) != 0;
  const bool transpose_b = node.intAttribute("transB", 0) != 0;
  std::swap(node.inputs[0], node.inputs[1]);
  node.attributes["transA"] = int64_t{!transpose_b};
  node.attributes["transB"] = int64_t{!transpose_a};
  node.outputs[0] = transposed;
  producer_[old.index()] = NodeId();
  recordOutputs(gemm);
  replaced_.insert(old);
  return transposed;
}

void BackwardBuilder::removeReplaced() {
  if (std::ranges::none_of(replaced_, [&](ValueId value) { return producer(value).valid(); })) return;
  std::set<ValueId> read(graph_.outputs.begin(), graph_.outputs.end());
  for (const Node& node : graph_.nodes) read.insert(node.inputs.begin(), node.inputs.end());
  size_t kept = 0;
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    Node& node = graph_.nodes[n];
    const bool is_dead = forward_nodes_[n].valid() && node.outputs.size() == 1 &&
                         isReplaced(node.outputs[0]) && !read.contains(node.outputs[0]);
    if (is_dead) {
      producer_[node.outputs[0].index()] = NodeId();
      continue;
    }
    if (kept != n) {
      graph_.nodes[kept] = std::move(node);
      forward_nodes_[kept] = forward_nodes_[n];
    }
    ++kept;
  }
  graph_.nodes.resize(kept);
  forward_nodes_.resize(kept);
  for (size_t n = 0; n < kept; ++n) recordOutputs(NodeId(n));
}

DataType BackwardBuilder::gradientType(ValueId value) const {
  const DataType own = graph_.dataType(value);
  NodeId node = producer(value);
  while (node.valid() && operatorFacts(graph_.node(node)).view != View::kNone)
    node = producer(graph_.node(node).inputs[0]);
  if (!node.valid() || !graph_.node(node).is("Cast")) return own;
  const ValueId weight = graph_.node(node).inputs[0];
  const DataType wide = graph_.dataType(weight);
  const bool is_half = own == DataType::kFloat16 || own == DataType::kBfloat16;
  return is_half && wide == DataType::kFloat32 && graph_.initializers.contains(weight) ? wide : own;
}

NodeId BackwardBuilder::addNode(std::string_view domain, std::string_view op_type, std::string_view overload,
                                std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                                std::map<std::string, Attribute> attributes) {
  if (domain == kPipeshardDomain) useFunction(op_type, overload);
  const NodeId id =
      builder_.addNode(domain, op_type, std::move(inputs), std::move(outputs), std::move(attributes));
  graph().node(id).overload = overload;
  if (!overload.empty()) graph().ir_version = std::max<int64_t>(graph().ir_version, 10);
  forward_nodes_.emplace_back();
  recordOutputs(id);
  return id;
}

NodeId BackwardBuilder::addBackwardNode(NodeId forward, std::string_view domain, std::string_view op_type,
                                        std::string_view overload, std::vector<ValueId> inputs,
                                        std::vector<ValueId> outputs,
                                        std::map<std::string, Attribute> attributes) {
  const NodeId id =
      addNode(domain, op_type, overload, std::move(inputs), std::move(outputs), std::move(attributes));
  std::string name = fmt::format("{}_grad/{}", forwardName(graph(), forward), op_type);
  if (const int uses = name_uses_[name]++; uses > 0) name += fmt::format("_{}", uses);
  graph().node(id).name = std::move(name);
  graph().node(id).metadata = graph().node(forward).metadata;
  forward_nodes_.back() = forward;
  return id;
}

GradientContext::GradientContext(BackwardBuilder& builder, NodeId forward,
                                 std::vector<ValueId> output_gradients, std::vector<bool> needed)
    : OpEmitter(builder.graph()),
      builder_(builder),
      forward_(forward),
      node_(builder.graph().node(forward)),
      output_gradients_(std::move(output_gradients)),
      needed_(std::move(needed)),
      input_gradients_(node_.inputs.size()) {}

ValueId GradientContext::input(size_t position) const {
  if (!hasInput(position)) refuse(fmt::format("it lacks input {}", position));
  return node_.inputs[position];
}

ValueId GradientContext::output(size_t position) const {
  if (position >= node_.outputs.size() || !node_.outputs[position].valid())
    refuse(fmt::format("it lacks output {}", position));
  return node_.outputs[position];
}

ValueId GradientContext::ensureOutput(size_t position, std::string_view suffix, DataType type, Shape shape) {
  std::vector<ValueId>& outputs = builder_.graph().node(forward_).outputs;
  if (outputs.size() <= position) outputs.resize(position + 1);
  if (!outputs[position].valid()) {
    const std::string name = fmt::format("{}.{}", builder_.graph().value(outputs[0]).name, suffix);
    outputs[position] = builder_.values().addValue(name, type, std::move(shape));
    builder_.recordOutputs(forward_);
  }
  node_.outputs = outputs;
  return outputs[position];
}

void GradientContext::becomeFunction(std::string_view name, std::string_view overload,
                                     Attributes attributes) {
  Node& node = builder_.graph().node(forward_);
  node.domain = kPipeshardDomain;
  node.op_type = name;
  node.overload = overload;
  node.opset_version = 1;
  node.attributes = std::move(attributes);
  builder_.useFunction(name, overload);
  node_ = node;
}

std::optional<std::vector<int64_t>> GradientContext::constantIntegers(size_t position) const {
  if (!hasInput(position)) return std::nullopt;
  const Constant* constant = builder_.graph().constant(node_.inputs[position]);
  if (constant == nullptr) {
    refuse(fmt::format("input {} ('{}') must be a constant for the gradient; export with static shapes there",
                       position, builder_.graph().value(node_.inputs[position]).name));
  }
  return integerElements(*constant);
}

std::optional<double> GradientContext::constantNumber(ValueId value) const {
  const Constant* constant = builder_.graph().constant(value);
  if (constant == nullptr || !hasOneElement(constant->shape) || builder_.isTrained(value))
    return std::nullopt;
  return numericElements(*constant).front();
}

void GradientContext::give(size_t position, ValueId gradient) {
  giveOfShape(position, shape(input(position)), {gradient});
}

void GradientContext::givePart(size_t position, ValueId gradient, size_t axis, int64_t start) {
  const Shape whole = shape(input(position));
  if (shape(gradient) == whole) return give(position, gradient);
  Shape wanted = whole;
  wanted[axis] = shape(gradient).at(axis);
  PIPESHARD_CHECK(start >= 0 && start + wanted[axis] <= whole[axis],
                  "{}: elements {} to {} of axis {} of input {}", describeNode(node_), start,
                  start + wanted[axis], axis, position);
  giveOfShape(position, wanted, {gradient, axis, start});
}

void GradientContext::giveOfShape(size_t position, const Shape& wanted, GradientPart part) {
  PIPESHARD_CHECK(needs(position), "{}: a gradient of input {} that nobody needs", describeNode(node_),
                  position);
  if (type(part.gradient) == type(input(position)))
    part.gradient = cast(part.gradient, gradientType(position));
  PIPESHARD_CHECK(shape(part.gradient) == wanted && type(part.gradient) == gradientType(position),
                  "{}: gradient of input {} is {}{}, wanted {}{}", describeNode(node_), position,
                  dataTypeName(type(part.gradient)), shapeToString(shape(part.gradient)),
                  dataTypeName(gradientType(position)), shapeToString(wanted));
  PIPESHARD_CHECK(!input_gradients_[position].gradient.valid(), "{}: two gradients of input {}",
                  describeNode(node_), position);
  input_gradients_[position] = part;
}

void GradientContext::refuse(std::string_view reason) const {
  fail(ErrorCode::kBadModel, "{}: its gradient cannot be taken: {}", describeNode(node_), reason);
}

void GradientContext::requireVersion(int version) const {
  if (node_.opset_version >= version) return;
  refuse(
      fmt::format("version {} of the operator has another meaning; convert the model to opset {} or later "
                  "(onnx.version_converter)",
                  node_.opset_version, version));
}

ValueId GradientContext::emit(std::string_view op_type, std::vector<ValueId> inputs, DataType type,
                              Shape shape, Attributes attributes) {
  const ValueId result = builder_.values().addValue(nodeName(op_type), type, std::move(shape));
  builder_.addBackwardNode(forward_, "", op_type, "", std::move(inputs), {result}, std::move(attributes));
  return result;
}

std::string GradientContext::nodeName(std::string_view op_type) {
  return fmt::format("{}_grad/{}", forwardName(builder_.graph(), forward_), op_type);
}

ValueId GradientContext::function(std::string_view name, std::string_view overload,
                                  std::vector<ValueId> inputs, DataType type, Shape shape,
                                  std::map<std::string, Attribute> attributes) {
  const ValueId result = builder_.values().addValue(nodeName(name), type, std::move(shape));
  builder_.addBackwardNode(forward_, kPipeshardDomain, name, overload, std::move(inputs), {result},
                           std::move(attributes));
  return result;
}

std::vector<ValueId> GradientContext::functionOutputs(std::string_view name, std::string_view overload,
                                                      std::vector<ValueId> inputs, DataType type,
                                                      const std::vector<std::optional<Shape>>& shapes,
                                                      std::map<std::string, Attribute> attributes) {
  std::vector<ValueId> results;
  for (const std::optional<Shape>& shape : shapes) {
    results.push_back(shape ? builder_.values().addValue(nodeName(name), type, *shape) : ValueId());
  }
  builder_.addBackwardNode(forward_, kPipeshardDomain, name, overload, std::move(inputs), results,
                           std::move(attributes));
  return results;
}

ValueId GradientContext::multiply(ValueId a, ValueId b) {
  const Shape result = broadcastShapes(shape(a), shape(b));
  if (const auto number = constantNumber(a); number && shape(b) == result) return scale(b, *number);
  if (const auto number = constantNumber(b); number && shape(a) == result) return scale(a, *number);
  return binary("Mul", a, b);
}

ValueId GradientContext::scale(ValueId x, double number) {
  if (number == 1) return x;
  if (const auto constant = constantNumber(x); constant && shape(x).empty())
    return scalar(type(x), *constant * number);
  if (number == -1) return unary("Neg", x);
  return binary("Mul", x, scalar(type(x), number));
}

ValueId GradientContext::untransposed(ValueId x) const {
  const NodeId id = builder_.producer(x);
  if (!id.valid() || !isMatrixTranspose(builder_.graph(), builder_.graph().node(id))) return {};
  return builder_.graph().node(id).inputs[0];
}

bool GradientContext::isReadBy(std::initializer_list<std::string_view> op_types) const {
  const std::vector<Node>& nodes = builder_.graph().nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    if (builder_.forwardNodes()[n].valid() || std::ranges::find(op_types, nodes[n].op_type) == op_types.end())
      continue;
    if (std::ranges::find(nodes[n].inputs, output()) != nodes[n].inputs.end()) return true;
  }
  return false;
}

std::optional<double> GradientContext::boundBelow() const {
  const std::vector<Node>& nodes = builder_.graph().nodes;
  for (size_t n = 0; n < nodes.size(); ++n) {
    const std::vector<ValueId>& inputs = nodes[n].inputs;
    if (builder_.forwardNodes()[n].valid() || !nodes[n].is("Max") || inputs.size() != 2) continue;
    if (inputs[0] == output()) return constantNumber(inputs[1]);
    if (inputs[1] == output()) return constantNumber(inputs[0]);
  }
  return std::nullopt;
}

ValueId GradientContext::transposedOutputGradient() {
  const Graph& graph = builder_.graph();
  if (!isMatrixTranspose(graph, node_)) return {};
  const ValueId gradient = outputGradient();
  const NodeId reader = builder_.soleReader(output());
  const NodeId product = builder_.producer(gradient);
  if (!reader.valid() || !product.valid() || builder_.forwardNodes()[product.index()] != reader) return {};
  if (!graph.node(reader).is("MatMul") && !graph.node(reader).is("Gemm")) return {};
  if (!graph.node(product).is("Gemm") || graph.node(product).inputs.size() != 2) return {};
  return builder_.transposeProduct(product);
}

ValueId GradientContext::transposeLastTwo(ValueId x) {
  std::vector<int64_t> permutation(shape(x).size());
  for (size_t i = 0; i < permutation.size(); ++i) permutation[i] = i;
  std::swap(permutation[permutation.size() - 1], permutation[permutation.size() - 2]);
  return transpose(x, permutation);
}

// x [4,2,3] to [2,1]: axis 0 was added by broadcasting, axis 2 stretched from 1; the sum over both is [1,2,1]
// and is reshaped to [2,1].
ValueId GradientContext::reduceTo(ValueId x, const Shape& target, DataType type) {
  const Shape from = shape(x);
  if (from == target) return x;
  const size_t leading = from.size() - target.size();
  std::vector<int64_t> axes;
  bool inner = false;
  for (size_t i = 0; i < from.size(); ++i) {
    const bool broadcast = i >= leading && target[i - leading] == 1 && from[i] != 1;
    if (i < leading || broadcast) axes.push_back(i);
    inner = inner || broadcast;
  }
  return reshape(reduceSum(x, axes, inner, type), target);
}

}  // namespace pipeshard
